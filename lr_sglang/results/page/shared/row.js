// One row: the versions of one step beside each other, with the verdict between them.

import { nodes } from "./boxed.js";
import { glyph, show } from "./glyph.js";
import { glyphOf, plural, time, verdictInWords } from "./words.js";

const STATES = {
  writing: "writing",
  accepted: "kept",
  rejected: "refused",
  cancelled: "given up",
  agreed: "agrees",
  kept: "kept",
};

const WITHOUT = {
  bonus: "Nothing was drafted in time.",
  alone: "The target wrote it by itself.",
  corrected: "Nothing was drafted in time.",
  accepted: "Nothing was compared.",
};

/** An element with a class and a text. All texts of this page are set as text, never as markup. */
export function make(tag, name = "", text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function cell(role) {
  const box = make("div", `version ${role}`);
  const text = make("p", "text");
  text.dir = "auto";
  const meta = make("p", "meta");
  box.append(text, meta);
  return { box, text, meta };
}

export class RowView {
  /** `open`: the verdicts in words are always shown. */
  constructor(row, open = false) {
    Object.assign(this, { row, open });
    this.item = make("li", open ? "step open" : "step");
    this.item.id = `step-${row.prefix}`;
    this.item.setAttribute("role", "treeitem");
    this.item.tabIndex = -1;
    this.pair = make("div", "pair");
    this.number = make("span", "no");
    this.target = cell("target");
    this.drafts = [];
    this.pair.append(this.number, make("i", "rail"), this.target.box);
    this.words = make("p", "words");
    this.group = null;
    this.item.append(this.pair);
  }

  /** The list of the rows that were given up below this one; made on first use. */
  branch() {
    if (!this.group) {
      this.group = make("ol", "given-up");
      this.group.setAttribute("role", "group");
      this.item.append(this.group);
    }
    return this.group;
  }

  update() {
    const { row, item } = this;
    item.dataset.kept = row.kept;
    item.dataset.outcome = row.dead ? "dead" : row.outcome || "open";
    item.dataset.from = sideBefore(row);
    put(this.number, `${row.position + 1}`);
    row.drafts.forEach((draft, index) => this.updateDraft(draft, index));
    if (!row.drafts.length) this.updateNone();
    const { target } = row;
    const agreed = row.kept === "draft" && target.ended !== null;
    const state = row.kept === "target" ? "kept" : agreed ? "agreed" : row.dead ? "cancelled" : target.state;
    fill(this.target, state, target, row.kept === "draft" && !agreed ? "not needed" : "");
    this.target.box.style.gridRow = `1 / span ${Math.max(1, row.drafts.length)}`;
    item.setAttribute("aria-label", this.spoken());
    if (this.selected || this.open) this.say();
  }

  updateDraft(draft, index) {
    let view = this.drafts[index];
    if (!view) {
      view = { ...cell("draft"), verdict: make("div", "verdict"), glyph: glyph("dot"), by: make("span", "by") };
      view.verdict.append(view.glyph, view.by);
      this.pair.append(view.box, view.verdict);
      for (const part of [view.box, view.verdict]) part.style.gridRow = String(index + 1);
      this.none?.remove();
      this.none = null;
      this.drafts[index] = view;
    }
    view.box.dataset.node = draft.number;
    fill(view, draft.state, draft, draft.verdict?.by === "late" ? "too late" : "");
    const { verdict } = draft;
    const given = ["cancelled", "rejected"].includes(draft.state);
    const asking = draft.judging && draft.judging.ended === null;
    show(view.glyph, verdict ? glyphOf(verdict) : asking ? "dots" : given ? "cross" : "dot");
    view.verdict.dataset.says = verdict ? (verdict.accepted ? "accepted" : "rejected") : asking ? "asking" : "";
    put(view.by, verdict ? verdict.by : asking ? "judging" : "");
  }

  /** Shows that nothing was drafted. */
  updateNone() {
    if (!this.none) {
      this.none = make("div", "verdict");
      this.none.append(glyph("dot"), make("span", "by"));
      this.pair.append(this.none);
    }
    show(this.none.firstChild, this.row.outcome === "bonus" || this.row.kept ? "plus" : "dot");
    put(this.none.lastChild, this.row.kept ? "alone" : "");
  }

  select(on) {
    this.selected = on;
    this.item.tabIndex = on ? 0 : -1;
    this.item.setAttribute("aria-selected", String(on));
    if (on || this.open) this.say();
    else this.words.remove();
  }

  /** The verdicts in words, with the times of both versions. */
  say() {
    const { row } = this;
    const parts = row.drafts.filter((draft) => draft.verdict).map((draft) => verdictInWords(draft.verdict));
    if (!parts.length) parts.push(row.dead ? "Given up before a comparison." : WITHOUT[isAlone(row) ? "alone" : row.outcome] ?? "Not decided yet.");
    if (row.outcome === "corrected") parts.push("The target's step is kept.");
    if (row.outcome === "accepted") parts.push("The draft's step is kept.");
    put(this.words, [...parts, row.note].filter(Boolean).join(" "));
    if (this.words.parentNode !== this.item) this.pair.after(this.words);
  }

  spoken() {
    const { row } = this;
    const outcome = row.dead ? "given up" : row.outcome || "not decided";
    const by = row.drafts.map((draft) => draft.verdict?.by).filter(Boolean);
    const text = row.kept === "target" ? row.target.text : row.drafts[0]?.text || row.target.text;
    return `Step ${row.position + 1}, ${outcome}${by.length ? ` by ${by.join(", ")}` : ""}: ${text.trim().slice(0, 300)}`;
  }
}

function fill(view, state, version, instead) {
  view.box.dataset.state = state;
  const text = version.text.trim();
  if (view.shown !== text) view.text.replaceChildren(...nodes(text));
  view.shown = text;
  const facts = [instead || (STATES[state] ?? "")];
  if (version.ended !== null && version.tokens) facts.push(plural(version.tokens, "token"));
  if (version.ended !== null && version.began !== null) facts.push(time(version.ended - version.began));
  put(view.meta, facts.filter(Boolean).join(" · "));
}

/** Whether the target wrote a step of which no draft was begun; a report says so of each step. */
function isAlone(row) {
  return row.outcome === "written" || (row.outcome === "bonus" && (row.alone ?? !row.drafts.length));
}

/** The side on which the line of the answer enters from the row above. */
function sideBefore(row) {
  if (row.dead) return "";
  return row.parent?.kept ?? "";
}
