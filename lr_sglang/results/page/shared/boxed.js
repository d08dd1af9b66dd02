// The final answer of a text, \boxed{...}, as a box with the answer in it.

const BEGINS = "\\boxed{";
const BOX = /\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}/; // braces in braces in it, as \frac has them
const LONGEST = 300; // characters after which an unfinished box is shown as it is

/** Elements of a text, set as texts. */
export function nodes(text) {
  return text.split(BOX).map((piece, index) => {
    const element = document.createElement(index % 2 ? "b" : "span");
    if (index % 2) element.className = "boxed";
    element.textContent = piece;
    return element;
  });
}

/** The length of a growing text that can be shown: an unfinished box at its end is held back. */
export function ready(text) {
  const at = text.lastIndexOf(BEGINS);
  if (at >= 0 && text.length - at < LONGEST && !BOX.test(text.slice(at))) return at;
  for (let length = Math.min(BEGINS.length - 1, text.length); length; length -= 1) {
    if (text.endsWith(BEGINS.slice(0, length))) return text.length - length;
  }
  return text.length;
}
