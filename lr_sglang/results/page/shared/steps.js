// The list of rows: it grows with the tree, and one moves in it with the arrow keys.

import { RowView } from "./row.js";

const SHOWN = 6; // of what was given up after a step, until one stands there; steps.css hides the others

export class Steps {
  /** `open`: see RowView. `chosen(row, how)` is told of the row that one points at ("point", null when none) or stands on ("stand"). */
  constructor(list, chosen, open = false) {
    Object.assign(this, { list, chosen, open });
    list.addEventListener("keydown", (event) => this.key(event));
    list.addEventListener("click", (event) => this.stand(this.viewAt(event.target), { toggle: true }));
    list.addEventListener("focusin", (event) => this.stand(this.viewAt(event.target)));
    list.addEventListener("pointerover", (event) => this.point(this.viewAt(event.target)));
    list.addEventListener("pointerleave", () => this.point(null));
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    Object.assign(this, { views: new Map(), current: null, pointed: null });
  }

  /** Shows again what changed. */
  update(rows) {
    const buried = [];
    for (const row of [...rows].sort((a, b) => a.prefix - b.prefix)) {
      let view = this.views.get(row.prefix);
      if (!view) {
        view = new RowView(row, this.open);
        this.views.set(row.prefix, view);
        this.place(view);
      }
      view.update();
      if (row.dead) buried.push(view);
    }
    for (const view of buried) this.bury(view);
    if (!this.current && this.list.firstElementChild) this.list.firstElementChild.tabIndex = 0;
  }

  /** After everything that hangs on the row before it; what is tried first stands first. */
  place(view) {
    const { parent } = view.row;
    let after = parent && this.views.get(parent.prefix)?.item;
    if (!after || after.parentNode !== this.list) {
      this.list.append(view.item);
      return;
    }
    while (after.nextElementSibling && this.hangsOn(after.nextElementSibling, parent)) after = after.nextElementSibling;
    after.after(view.item);
  }

  hangsOn(item, ancestor) {
    let row = this.viewOf(item)?.row;
    while (row && row.position > ancestor.position) row = row.parent;
    return row === ancestor;
  }

  /** Moves a row that was given up under the last one that was not. */
  bury(view) {
    if (view.buried) return;
    let row = view.row.parent;
    while (row?.dead) row = row.parent;
    const home = row && this.views.get(row.prefix);
    if (!home) return;
    const focused = view.item.contains(document.activeElement);
    const group = home.branch();
    group.append(view.item);
    view.buried = true;
    const more = group.childElementCount - SHOWN;
    if (more > 0) group.dataset.more = `and ${more} more`;
    if (focused) view.item.focus({ preventScroll: true });
  }

  viewOf(item) {
    return this.views.get(Number(item.id.slice("step-".length)));
  }

  viewAt(element) {
    const item = element.closest?.(".step");
    return item ? this.viewOf(item) : null;
  }

  point(view) {
    if (view === this.pointed) return;
    this.pointed = view;
    this.chosen(view?.row ?? null, "point");
  }

  stand(view, { toggle = false } = {}) {
    if (!view) return;
    if (view === this.current) {
      if (!toggle) return;
    } else {
      this.current?.select(false);
      this.list.firstElementChild.tabIndex = -1;
      this.current = view;
      view.select(true);
    }
    view.group?.classList.add("all");
    this.chosen(view.row, "stand");
  }

  /** Brings a row into view and stands on it: for the timeline. */
  go(row) {
    const view = this.views.get(row.prefix);
    if (!view) return;
    view.item.closest(".given-up")?.classList.add("all");
    view.item.focus({ preventScroll: true });
    view.item.scrollIntoView({ block: "nearest" });
  }

  light(row) {
    this.list.querySelector(".lit")?.classList.remove("lit");
    if (row) this.views.get(row.prefix)?.item.classList.add("lit");
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const from = this.viewAt(event.target);
    if (!from) return;
    const item = this.neighbour(from.item, event.key);
    if (item === undefined) return;
    event.preventDefault();
    if (item) {
      item.closest(".given-up")?.classList.add("all");
      item.focus({ preventScroll: true });
      item.querySelector(".pair").scrollIntoView({ block: "nearest" });
    }
  }

  /** Where a key leads: undefined where it is none of ours, null at the end. */
  neighbour(item, key) {
    const parent = item.parentElement.closest(".step");
    switch (key) {
      case "ArrowDown":
        return first(item.querySelector(":scope > .given-up")) ?? following(item);
      case "ArrowUp":
        return item.previousElementSibling ? deepest(item.previousElementSibling) : parent;
      case "ArrowRight":
        return first(item.querySelector(":scope > .given-up"));
      case "ArrowLeft":
        return parent;
      case "Home":
        return this.list.firstElementChild;
      case "End":
        return this.list.lastElementChild;
      default:
        return undefined;
    }
  }
}

const first = (group) => (group && group.offsetParent !== null ? group.firstElementChild : null);

function following(item) {
  for (let at = item; at; at = at.parentElement.closest(".step")) {
    if (at.nextElementSibling) return at.nextElementSibling;
  }
  return null;
}

function deepest(item) {
  const last = first(item.querySelector(":scope > .given-up"))?.parentElement.lastElementChild;
  return last ? deepest(last) : item;
}
