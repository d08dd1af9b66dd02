// The step tree of one answer, from the events of its trace. Plain data: nothing here knows the document.
//
// A row is a prefix of the answer with the versions of the step after it: the draft's (some) and the target's (one).

const OPEN = new Set(["", "writing", "here"]);

export class Tree {
  rows = new Map(); // by the number of the prefix
  nodes = new Map();
  bars = []; // every branch, for the timeline
  changed = new Set(); // rows to be shown again
  counts = { accepted: 0, corrected: 0, bonus: 0 };
  judged = 0;
  tokens = 0;
  seconds = 0;
  kept = -1; // position of the last step of the answer
  last = 0; // its prefix
  finish = "";

  /** Takes in one event; what is not known is left alone. */
  apply(event) {
    this.seconds = Math.max(this.seconds, Number(event.seconds) || 0);
    const act = ACTS[event.kind];
    if (act) act(this, event);
  }

  /** How many steps there are beyond the last that was kept. */
  get ahead() {
    let deepest = this.kept;
    for (const row of this.open()) {
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

  /** Rows that are not decided. Rows are in the order of their prefixes' numbers, nearly: the open ones are the last. */
  *open() {
    for (const row of [...this.undecided]) yield row;
  }

  undecided = new Set();

  row(prefix, position) {
    let row = this.rows.get(prefix);
    if (!row) {
      const parent = this.nodes.get(prefix)?.row ?? null;
      const target = { state: "", text: "", tokens: 0, began: null, ended: null, bar: null };
      row = { prefix, position, parent, drafts: [], target, kept: "", outcome: "", next: null, dead: false };
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
    this.bars.push(bar);
    return bar;
  }

  /** What hangs on a prefix that lost is given up with it. */
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
    row.outcome = event.kind;
    row.next = event.node;
    this.undecided.delete(row);
    this.counts[event.kind] += 1;
    this.judged += row.drafts.some((draft) => draft.verdict && !draft.verdict.failed) ? 1 : 0;
    this.tokens += event.tokens || 0;
    this.kept = event.position;
    this.last = event.node;
    this.changed.add(row);
  }
}

function close(bar, seconds, state) {
  if (!bar) return;
  bar.ended ??= Math.max(seconds, bar.began);
  if (state && (!bar.state || bar.state === "here")) bar.state = state;
}

const ACTS = {
  begun(tree, event) {
    if (event.role === "target") {
      const row = tree.row(event.prefix, event.position);
      Object.assign(row.target, { state: "writing", began: event.seconds });
      row.target.bar = tree.bar("target", row, null, event.seconds);
      return;
    }
    const node = tree.draft(event);
    const bar = tree.bar(event.role, node.row, node, event.seconds);
    if (event.role === "judge") node.judging = bar;
    else Object.assign(node, { state: "writing", began: event.seconds, bar });
  },

  drafted(tree, event) {
    const node = tree.draft(event);
    if (OPEN.has(node.state)) node.state = "here";
    Object.assign(node, { text: event.text ?? "", tokens: event.tokens ?? 0, ended: event.seconds });
    close(node.bar, event.seconds, "here");
  },

  written(tree, event) {
    const row = tree.row(event.prefix, event.position);
    Object.assign(row.target, { text: event.text ?? "", tokens: event.tokens ?? 0, ended: event.seconds, state: "here" });
    close(row.target.bar, event.seconds, row.kept ? "accepted" : "here");
  },

  verified(tree, event) {
    const node = tree.draft(event);
    node.verdict = event.verdict ?? null;
    close(node.judging, event.seconds, node.verdict?.accepted ? "accepted" : "rejected");
  },

  accepted(tree, event) {
    const node = tree.draft(event);
    node.state = "accepted";
    if (event.text) node.text = event.text;
    close(node.bar, event.seconds, "accepted");
    close(node.row.target.ended === null ? null : node.row.target.bar, event.seconds, "accepted");
    tree.keep(node.row, "draft", event);
  },

  corrected(tree, event) {
    const row = tree.row(event.prefix, event.position);
    Object.assign(row.target, { state: "here", ended: row.target.ended ?? event.seconds });
    if (event.text) Object.assign(row.target, { text: event.text, tokens: event.tokens ?? row.target.tokens });
    close(row.target.bar, event.seconds, "corrected");
    if (!tree.nodes.has(event.node)) tree.nodes.set(event.node, { number: event.node, row, state: "kept" });
    const next = tree.rows.get(event.node); // prepared while the verdict was awaited
    if (next) next.parent ??= row;
    for (const draft of row.drafts) {
      if (OPEN.has(draft.state)) tree.lose(draft, "rejected");
      tree.bury(draft.number);
    }
    tree.keep(row, "target", event);
  },

  bonus(tree, event) {
    ACTS.corrected(tree, event);
  },

  dropped(tree, event) {
    if (event.node === undefined || event.node === null) {
      const row = tree.row(event.prefix, event.position);
      if (row.target.state === "writing") tree.giveUp(row);
      return;
    }
    const node = tree.nodes.get(event.node);
    if (node?.verdict !== undefined) tree.lose(node, event.outcome || "cancelled");
    tree.bury(event.node);
  },

  ended(tree, event) {
    tree.finish = event.outcome || "stop";
    for (const row of tree.open()) tree.bury(row.prefix);
    for (const bar of tree.bars) close(bar, event.seconds, "cancelled");
  },
};
