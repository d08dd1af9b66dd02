// One question and its answer: sends the request, retries while the endpoint is busy, and calls back for each chunk.

import { Problem, ask } from "./stream.js";

const TRIES = 6;

export class Exchange {
  /** `on`: the callbacks `event`, `reasoning`, `content`, `finish`, `summary` and `waiting(seconds until the retry)`. */
  constructor(on) {
    this.on = on;
    this.control = new AbortController();
    this.heard = performance.now();
    this.seconds = 0;
  }

  /** Seconds since the question was asked, on the endpoint's clock as far as it is known. */
  get now() {
    return this.seconds + (performance.now() - this.heard) / 1000;
  }

  stop() {
    this.control.abort();
  }

  /** Returns when the answer is complete; raises a Problem, or an AbortError when stopped. */
  async run(body, key) {
    for (let tried = 1; ; tried += 1) {
      try {
        this.restart();
        for await (const chunk of ask(body, key, this.control.signal)) this.take(chunk);
        return;
      } catch (error) {
        const busy = error instanceof Problem && error.status === 429;
        if (!busy || tried === TRIES) throw error;
        await this.wait(error.wait ?? Math.min(2 ** tried, 30));
      }
    }
  }

  restart() {
    Object.assign(this, { heard: performance.now(), seconds: 0 });
  }

  take(chunk) {
    const event = chunk.lookahead?.event;
    if (event) {
      const seconds = Number(event.seconds) || 0;
      if (seconds >= this.seconds) Object.assign(this, { seconds, heard: performance.now() });
      this.on.event(event);
    } else if (chunk.lookahead) {
      this.on.summary(chunk.lookahead, chunk.usage ?? null);
    }
    const choice = chunk.choices?.[0];
    if (choice?.delta?.reasoning_content) this.on.reasoning(String(choice.delta.reasoning_content));
    if (choice?.delta?.content) this.on.content(String(choice.delta.content));
    if (choice?.finish_reason) this.on.finish(String(choice.finish_reason));
  }

  async wait(seconds) {
    const until = performance.now() + seconds * 1000;
    for (let left = seconds; left > 0; left = (until - performance.now()) / 1000) {
      this.on.waiting(Math.ceil(left));
      await pause(Math.min(left, 1) * 1000, this.control.signal);
    }
    this.on.waiting(0);
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const timer = setTimeout(done, milliseconds);
    function done() {
      signal.removeEventListener("abort", stop);
      resolve();
    }
    function stop() {
      clearTimeout(timer);
      reject(signal.reason);
    }
    signal.addEventListener("abort", stop, { once: true });
  });
}
