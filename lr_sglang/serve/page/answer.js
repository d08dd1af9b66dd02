// The text of the answer as it is delivered. New pieces are added, never rewritten, so that a screen reader hears each once.

import { nodes, ready } from "./boxed.js";

export class AnswerView {
  constructor(section) {
    const at = (id) => section.querySelector(`#${id}`);
    Object.assign(this, { section, asked: at("asked"), reasoning: at("reasoning"), content: at("content"), finish: at("finish") });
    this.waiting = { reasoning: [], content: [] };
  }

  clear(question) {
    this.waiting = { reasoning: [], content: [] };
    this.reasoning.replaceChildren();
    this.content.replaceChildren();
    this.asked.textContent = this.asked.title = question;
    this.finish.textContent = "";
  }

  add(kind, text) {
    this.waiting[kind].push(text);
  }

  /** Shows new text, once per frame; keeps the panel at its end if it was there. With `last`, no text is held back. */
  update(last = false) {
    const { section } = this;
    const atEnd = section.scrollHeight - section.scrollTop - section.clientHeight < 40;
    let grown = false;
    for (const kind of ["reasoning", "content"]) {
      if (!this.waiting[kind].length) continue;
      const text = this.waiting[kind].join("");
      const shown = text.slice(0, last ? text.length : ready(text)).trimEnd(); // the space between two steps is shown with the second
      this.waiting[kind] = shown.length < text.length ? [text.slice(shown.length)] : [];
      if (!shown) continue;
      this[kind].append(...nodes(this[kind].firstChild ? shown : shown.trimStart()));
      grown = true;
    }
    if (grown && atEnd) section.scrollTop = section.scrollHeight;
  }
}
