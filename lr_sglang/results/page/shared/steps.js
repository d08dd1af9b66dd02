// The list of rows: grows with the tree; the arrow keys move the selection.

import { RowView } from "./row.js";

const SHOWN = 6; // given-up rows shown below a row that is not selected; steps.css hides the others

export class Steps {
  /** `open`: see RowView. `chosen(row, how)` is called with the row under the pointer ("point", null for none) or the selected one ("stand"). */
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

  /** Redraws changed rows. */
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

  /** Inserts a row behind its parent and all rows below that, in order of arrival. */
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

  /** Moves a given-up row below its nearest ancestor that was not given up. */
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

  /** Selects a row and scrolls it into view, for the timeline. */
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

  /** The item that a key moves to: null at the end, undefined for other keys. */
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
