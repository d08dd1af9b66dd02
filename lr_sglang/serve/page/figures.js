// The figures of the answer, live.

import { round, time } from "./words.js";

const KINDS = ["accepted", "corrected", "alone"];

export class Figures {
  constructor(list) {
    this.cells = Object.fromEntries([...list.querySelectorAll("[data-figure]")].map((cell) => [cell.dataset.figure, cell]));
    this.meter = list.querySelector(".meter i");
    this.split = [...list.querySelectorAll(".split i")];
    this.kinds = [...list.querySelectorAll(".kinds span")];
  }

  /** `now`: seconds since the question was asked. */
  show(tree, now) {
    const { counts, steps, alpha } = tree;
    const none = "–";
    this.put("alpha", alpha === null ? none : round(alpha));
    this.put("compared", tree.judged ? `${counts.accepted} of ${tree.judged} drafts` : "");
    this.put("steps", steps ? String(steps) : none);
    this.put("ahead", tree.finish ? none : String(tree.ahead));
    this.put("tokens", tree.tokens ? String(tree.tokens) : none);
    this.put("speed", tree.tokens && now > 0 ? round(tree.tokens / now, tree.tokens / now < 10 ? 1 : 0) : none);
    this.put("time", now ? time(now) : none);
    this.meter.style.width = `${100 * (alpha ?? 0)}%`;
    [counts.accepted, counts.corrected, counts.bonus].forEach((count, index) => {
      this.split[index].style.flexGrow = String(count);
      this.kinds[index].textContent = count ? `${count} ${KINDS[index]}` : "";
    });
  }

  put(name, text) {
    const cell = this.cells[name];
    if (cell.textContent !== text) cell.textContent = text;
  }
}
