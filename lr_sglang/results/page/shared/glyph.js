// The signs between two versions, drawn as SVG because not every font has them.

const SVG = "http://www.w3.org/2000/svg";
const WAVES = "M4 9.5c2.7-3.2 5.3-3.2 8 0s5.3 3.2 8 0M4 15.5c2.7-3.2 5.3-3.2 8 0s5.3 3.2 8 0";
const LINES = "M5 9.5h14M5 14.5h14";
const PATHS = {
  approx: WAVES,
  differ: `${WAVES}M16.5 4l-9 17`,
  equal: LINES,
  unequal: `${LINES}M16 5l-8 14`,
  plus: "M12 6v12M6 12h12",
  clock: "M12 4.5a7.5 7.5 0 1 0 .01 0M12 8v4.3l2.8 1.8",
  bang: "M12 5v8.5M12 18.5h.01",
  cross: "M7.5 7.5l9 9M16.5 7.5l-9 9",
  dots: "M6 12h.01M12 12h.01M18 12h.01",
  dot: "M12 12h.01",
};

/** An SVG element showing one of the signs. */
export function glyph(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "glyph");
  const path = document.createElementNS(SVG, "path");
  svg.append(path);
  show(svg, name);
  return svg;
}

/** Changes the sign. */
export function show(svg, name) {
  if (svg.dataset.glyph === name) return;
  svg.dataset.glyph = name;
  svg.firstChild.setAttribute("d", PATHS[name]);
}
