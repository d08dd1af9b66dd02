// Sends one question to the endpoint and yields the chunks of the response.

/** What went wrong: `kind` is unreachable, refused (with a status), broken (the stream) or failed (an error in the stream). */
export class Problem extends Error {
  constructor(kind, message = "", { status = 0, wait = null } = {}) {
    super(message);
    Object.assign(this, { kind, status, wait });
  }
}

/** Yields the chunks of an answer. Aborting the signal ends it with an AbortError. */
export async function* ask(body, key, signal) {
  const headers = { "content-type": "application/json", accept: "text/event-stream" };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    const request = { method: "POST", headers, body: JSON.stringify(body), signal, cache: "no-store" };
    response = await fetch("v1/chat/completions", request);
  } catch (error) {
    throw aborted(error) ?? new Problem(isHeader(error) ? "key" : "unreachable", String(error.message));
  }
  if (!response.ok) throw await refusal(response);
  if (!response.body) throw new Problem("broken", "an empty answer");
  let done = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      done = true;
      break;
    }
    yield parsed(data);
  }
  if (!done) throw new Problem("broken", "it ended before the answer did");
}

function parsed(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new Problem("broken", "something came that is no JSON");
  }
  if (chunk === null || typeof chunk !== "object") throw new Problem("broken", "something came that is no chunk");
  if (chunk.error) throw new Problem("failed", String(chunk.error.message ?? "no reason given"));
  return chunk;
}

/** The data of server-sent events, one string each. */
async function* events(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        throw aborted(error) ?? new Problem("broken", "the connection was lost");
      });
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function refusal(response) {
  let message = "";
  try {
    message = String((await response.json()).error.message ?? "");
  } catch {
    // not an error of the endpoint: a proxy's page, for example
  }
  const seconds = Number.parseFloat(response.headers.get("retry-after") ?? "");
  const wait = Number.isFinite(seconds) ? Math.min(Math.max(seconds, 1), 120) : null;
  return new Problem("refused", message, { status: response.status, wait });
}

const aborted = (error) => (error?.name === "AbortError" ? error : null);

// A key with letters that no header can carry fails before anything is sent.
const isHeader = (error) => error instanceof TypeError && /header|ISO-8859-1|ByteString/i.test(error.message);
