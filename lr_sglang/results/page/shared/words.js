// Verdicts and figures in words.

const AGREE = {
  judge: "The judge: the two versions mean the same",
  identical: "The same words in both: no verdict was needed",
  exact: "The same tokens in both",
  reading: "The target read it, and would have written the same tokens",
  line: "The target verified it while it wrote, and its tokens are the same",
};
const DIFFER = {
  judge: "The judge: the two versions do not mean the same",
  exact: "The tokens differ",
  reading: "The target read it, and would have written other tokens",
  line: "The target verified it while it wrote, and its own tokens are others",
  late: "The draft was too late: the target's own step was there first",
  guard: "The step before was cut off at the token cap, so nothing drafted after it is kept",
  ending: "The two versions end differently",
  draft: "The draft failed here, and the target went on alone",
};

/** A verdict as a sentence. */
export function verdictInWords(verdict) {
  const known = (verdict.accepted ? AGREE : DIFFER)[verdict.by];
  let text = known ?? `The verifier “${verdict.by}” ${verdict.accepted ? "accepts" : "refuses"} the draft's step`;
  if (verdict.failed && verdict.by !== "draft") text = `The verifier “${verdict.by}” gave no verdict, so the target's step is kept`;
  if (verdict.reason && !["late", "guard", "untrusted", "ending", "special"].includes(verdict.by)) text += ` (${verdict.reason})`;
  if (typeof verdict.score === "number" && !/\d/.test(verdict.reason ?? "")) text += `, score ${round(verdict.score)}`;
  if (verdict.seconds > 0) text += `, after ${time(verdict.seconds)}`;
  return `${text}.`;
}

/** Which glyph stands between two versions. */
export function glyphOf(verdict) {
  if (verdict.failed) return "bang";
  if (verdict.by === "late") return "clock";
  const exact = ["exact", "identical", "reading", "line"].includes(verdict.by);
  if (verdict.accepted) return exact ? "equal" : "approx";
  return exact ? "unequal" : "differ";
}

export const round = (value, digits = 2) => Number(value).toFixed(digits);

/** Seconds, with a sensible number of digits. */
export function time(seconds) {
  if (seconds >= 60) {
    const whole = Math.floor(seconds);
    return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  }
  return seconds >= 10 ? `${round(seconds, 1)} s` : seconds >= 1 ? `${round(seconds)} s` : `${Math.round(seconds * 1000)} ms`;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
