// The figures of the answer, live.

import { round, time } from "./words.js";

export class Figures {
  constructor(list) {
    this.cells = Object.fromEntries([...list.querySelectorAll("[data-figure]")].map((cell) => [cell.dataset.figure, cell]));
    this.meter = list.querySelector(".meter i");
    this.split = [...list.querySelectorAll(".split i")];
  }

  /** `now`: seconds since the question was asked. */
  show(tree, now) {
    const { counts, steps, alpha } = tree;
    const none = "–";
    this.put("alpha", alpha === null ? none : round(alpha));
    this.put("steps", steps ? String(steps) : none);
    this.put("ahead", tree.finish ? none : String(tree.ahead));
    this.put("tokens", tree.tokens ? String(tree.tokens) : none);
    this.put("speed", tree.tokens && now > 0 ? round(tree.tokens / now, tree.tokens / now < 10 ? 1 : 0) : none);
    this.put("time", now ? time(now) : none);
    this.meter.style.width = `${100 * (alpha ?? 0)}%`;
    [counts.accepted, counts.corrected, counts.bonus].forEach((count, index) => {
      this.split[index].style.flexGrow = String(count);
    });
    this.cells.steps.title = `${counts.accepted} accepted, ${counts.corrected} corrected, ${counts.bonus} of the target alone`;
  }

  put(name, text) {
    const cell = this.cells[name];
    if (cell.textContent !== text) cell.textContent = text;
  }
}
