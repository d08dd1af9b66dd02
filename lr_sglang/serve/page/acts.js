// How each kind of event changes the tree.

/** States of a version that is not decided yet. */
export const OPEN = new Set(["", "writing", "here"]);

export const ACTS = {
  begun(tree, event) {
    if (event.role === "target") {
      const row = tree.row(event.prefix, event.position);
      Object.assign(row.target, { state: "writing", began: event.seconds });
      row.target.bar = tree.bar("target", row, null, event.seconds);
      return;
    }
    if (event.node === undefined || event.node === null) {
      // tokens in the middle of a step, which the target is to read
      tree.bar(event.role, tree.row(event.prefix, event.position), null, event.seconds);
      return;
    }
    const node = tree.draft(event);
    const bar = tree.bar(event.role, node.row, node, event.seconds);
    if (event.role === "judge") node.judging = bar;
    else Object.assign(node, { state: "writing", began: event.seconds, bar });
  },

  done(tree, event) {
    close(tree.bars[event.branch - 1], event.seconds, "here");
  },

  cancelled(tree, event) {
    close(tree.bars[event.branch - 1], event.seconds, "cancelled");
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

  prepared(tree, event) {
    tree.nodes.set(event.node, { row: tree.row(event.prefix, event.position) });
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
    settle(row.target.bar, "corrected"); // it may write on
    tree.nodes.set(event.node, { row });
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
    for (const row of [...tree.undecided]) tree.bury(row.prefix);
    for (const bar of tree.bars) close(bar, event.seconds, "cancelled");
  },
};

/** Ends a branch's bar, once, and sets its final state. */
export function close(bar, seconds, state) {
  if (!bar) return;
  bar.ended ??= Math.max(seconds, bar.began);
  settle(bar, state);
}

/** Sets the final state of a branch's bar, once. */
export function settle(bar, state) {
  if (bar && state && (!bar.state || bar.state === "here")) bar.state = state;
}
