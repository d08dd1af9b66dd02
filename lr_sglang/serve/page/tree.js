// The step tree of one answer, from the events of its trace. Plain data, without access to the document.
//
// A row is a prefix of the answer with the versions of the step after it: the draft's (some) and the target's (one).

import { ACTS, OPEN, close, settle } from "./acts.js";

export class Tree {
  rows = new Map(); // by the number of the prefix
  nodes = new Map();
  bars = []; // every branch, for the timeline
  changed = new Set(); // rows to redraw
  undecided = new Set();
  counts = { accepted: 0, corrected: 0, bonus: 0 };
  judged = 0;
  tokens = 0;
  seconds = 0;
  kept = -1; // position of the last step of the answer
  finish = "";

  /** Applies one event; ignores unknown kinds. */
  apply(event) {
    this.seconds = Math.max(this.seconds, Number(event.seconds) || 0);
    if (Object.hasOwn(ACTS, event.kind)) ACTS[event.kind](this, event);
  }

  /** How many steps the drafts are ahead of the last kept step. */
  get ahead() {
    let deepest = this.kept;
    for (const row of this.undecided) {
      if (row.drafts.some((draft) => draft.state === "here")) deepest = Math.max(deepest, row.position);
    }
    return deepest - this.kept;
  }

  get alpha() {
    return this.judged ? this.counts.accepted / this.judged : null;
  }

  get steps() {
    return this.counts.accepted + this.counts.corrected + this.counts.bonus;
  }

  row(prefix, position) {
    let row = this.rows.get(prefix);
    if (!row) {
      const parent = this.nodes.get(prefix)?.row ?? null;
      const target = { state: "", text: "", tokens: 0, began: null, ended: null, bar: null };
      row = { prefix, position, parent, drafts: [], target, bars: [], kept: "", outcome: "", dead: false };
      this.rows.set(prefix, row);
      this.undecided.add(row);
    }
    this.changed.add(row);
    return row;
  }

  draft(event) {
    let node = this.nodes.get(event.node);
    if (!node) {
      const row = this.row(event.prefix, event.position);
      node = { number: event.node, row, state: "", text: "", tokens: 0, began: null, ended: null };
      Object.assign(node, { verdict: null, bar: null, judging: null });
      this.nodes.set(event.node, node);
      row.drafts.push(node);
    }
    this.changed.add(node.row);
    return node;
  }

  bar(role, row, node, began) {
    const bar = { role, row, node, began, ended: null, state: "" };
    this.bars.push(bar); // in the order of their events ``begun``, by which ``done`` finds them
    row.bars.push(bar);
    return bar;
  }

  /** Gives up everything below a prefix that lost. */
  bury(number) {
    const row = this.rows.get(number);
    if (!row || row.dead) return;
    row.dead = true;
    this.undecided.delete(row);
    this.changed.add(row);
    this.giveUp(row);
    for (const draft of row.drafts) {
      if (OPEN.has(draft.state)) this.lose(draft, "cancelled");
      this.bury(draft.number);
    }
  }

  giveUp(row) {
    const { target } = row;
    if (target.state === "writing") target.state = "cancelled";
    close(target.bar, this.seconds, "cancelled");
    this.changed.add(row);
  }

  lose(draft, outcome) {
    draft.state = outcome;
    close(draft.bar, this.seconds, outcome);
    close(draft.judging, this.seconds, "cancelled");
    this.changed.add(draft.row);
  }

  keep(row, side, event) {
    row.kept = side;
    for (const bar of row.bars) if (bar.node === null && bar.ended !== null) settle(bar, "accepted");
    row.outcome = event.kind;
    this.undecided.delete(row);
    this.counts[event.kind] += 1;
    this.judged += row.drafts.some((draft) => draft.verdict && !draft.verdict.failed) ? 1 : 0;
    this.tokens += event.tokens || 0;
    this.kept = event.position;
    this.changed.add(row);
  }
}
