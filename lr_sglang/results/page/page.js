"use strict";
// Everything that comes from a model or a file is put in as text, never as markup.
const index = JSON.parse(document.getElementById("index").textContent);
const $ = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 820px)");
const CHUNK = 100;
const MARKS = { correct: "✓", wrong: "✗", failed: "!", ungraded: "·" };
const OUTCOMES = { accepted: "accepted: the draft's version", corrected: "corrected: the target's version", bonus: "the target's, nothing was drafted",
  written: "written by the target" };
const COLOURS = { autoregressive: "controller", sd: "judge", lookahead: "target", "lookahead+sd": "draft", lossless: "queue" };
let shown = [], drawn = 0, current = -1, zoom = 1;

function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "style") for (const [n, v] of Object.entries(value)) made.style.setProperty(n, v);
    else if (key in made) made[key] = value; else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
function svg(name, attributes = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
const seconds = (value) => value >= 100 ? `${value.toFixed(0)} s` : value >= 1 ? `${value.toFixed(2)} s` : `${(1000 * value).toFixed(0)} ms`;
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const colour = (name) => `var(--${name})`;

// -- summary

function summary() {
  $("about").textContent = index.about;
  if (index.warning) { $("warning").textContent = index.warning; $("warning").hidden = false; }
  const cards = index.groups.map((group) => el("div", { className: "card", style: { "--mode": colour(COLOURS[group.mode] || "rejected") } },
    el("b", {}, group.name), index.tasks > 1 ? el("span", { className: "soft" }, group.task) : null,
    el("dl", {}, ...group.facts.flatMap(([name, value, interval]) =>
      [el("dt", {}, name), el("dd", {}, value, interval ? el("small", {}, " " + interval) : "")]))));
  const tables = index.tables.map((table) => el("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: table.title },
    el("table", { className: table.columns[1] === "mode" ? "two" : "" }, el("caption", {}, table.title),
      el("thead", {}, el("tr", {}, ...table.columns.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...table.rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, cell)))))),
    el("p", { className: "soft" }, [index.warning, table.note].filter(Boolean).join(". "))));
  const many = cards.length > 6;
  $("summary").append(el("div", { className: many ? "cards many" : "cards", ...(many ? { tabIndex: 0, role: "region", ariaLabel: "figures by mode" } : {}) }, ...cards), el("details", {}, el("summary", {}, "All tables"), ...tables));
}

// -- list

function options(select, values) {
  select.append(...values.map(([value, name]) => el("option", { value }, name)));
  select.addEventListener("change", filter);
}
const number = new Intl.Collator(undefined, { numeric: true });
const ORDERS = {
  question: (a, b) => number.compare(a.id, b.id) || a.sample - b.sample || a.group - b.group,
  slowest: (a, b) => b.seconds - a.seconds,
  fastest: (a, b) => a.seconds - b.seconds,
  alpha: (a, b) => (a.alpha ?? 2) - (b.alpha ?? 2),
};
function filter() {
  const words = $("words").value.toLowerCase().split(/\s+/).filter(Boolean), group = $("mode").value, result = $("result").value;
  shown = index.records.filter((record) => (group === "" || record.group === Number(group)) && (result === "" || record.result === result)
    && words.every((word) => record.search.includes(word)));
  shown.sort(ORDERS[$("order").value]);
  drawn = 0;
  $("list").replaceChildren();
  $("count").textContent = `${shown.length} of ${index.records.length} answers`;
  more();
}
let watcher = null;
function more() {
  if (watcher) watcher.disconnect();
  // The list scrolls by itself, on a phone with the page.
  watcher = new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) more(); }, { root: narrow.matches ? null : $("list"), rootMargin: "300px" });
  const rows = shown.slice(drawn, drawn + CHUNK).map(row);
  drawn += rows.length;
  $("list").append(...rows);
  if (drawn < shown.length && rows.length) watcher.observe(rows[rows.length - 1]);
}
function row(record) {
  const button = el("button", { type: "button" },
    el("span", { className: record.result, ariaHidden: "true" }, MARKS[record.result]),
    el("span", { className: "name" }, record.id + (index.samples > 1 ? ` #${record.sample}` : "")),
    el("span", { className: "time" }, seconds(record.seconds)),
    el("span", { className: "mode" }, `${index.groups[record.group].name}${record.alpha === null ? "" : `, alpha ${record.alpha.toFixed(2)}`}, ${record.result}`));
  button.dataset.n = record.n;
  if (record.n === current) button.setAttribute("aria-current", "true");
  button.addEventListener("click", () => open(record.n, true));
  return el("li", {}, button);
}
function mark() {
  for (const button of $("list").querySelectorAll("button")) {
    if (Number(button.dataset.n) === current) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
  }
}

// -- one answer

function open(n, go) {
  current = n;
  const about = index.records[n], record = JSON.parse($(`r${n}`).textContent);
  document.body.classList.toggle("reading", go || document.body.classList.contains("reading"));
  mark();
  history.replaceState(null, "", `#${n}`);
  const back = el("button", { id: "back", type: "button" }, "← all answers");
  back.addEventListener("click", close);
  const siblings = index.records.filter((one) => one.id === about.id && one.task === about.task);
  const group = index.groups[about.group];
  $("detail").replaceChildren(back,
    el("h2", {}, about.id + (index.samples > 1 ? `, sample ${about.sample}` : "")),
    el("p", { className: "text question" }, record.question),
    siblings.length > 1 && siblings.length <= 40 ? choices(siblings) : "",
    el("ul", { className: "facts" }, ...facts(about, record, group).map(([name, value, kind]) =>
      el("li", {}, el("span", {}, name + " "), el("b", { className: kind || "" }, value)))),
    record.error ? el("p", { className: "error text" }, record.error) : "",
    timeline(record), el("h3", {}, plural(record.steps.length, "step")), steps(record));
  if (go) { if (narrow.matches) scrollTo(0, 0); $("detail").focus({ preventScroll: !narrow.matches }); }
}
function choices(siblings) {
  return el("div", { className: "siblings" }, ...siblings.map((one) => {
    const button = el("button", { type: "button" }, index.groups[one.group].name + (index.samples > 1 ? ` #${one.sample}` : ""));
    if (one.n === current) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => open(one.n, true));
    return button;
  }));
}
function facts(about, record, group) {
  const found = [["mode", group.name], ["result", about.result, about.result]];
  if (record.answer !== null) found.push(["answer", record.answer]);
  if (record.gold !== null) found.push(["gold", record.gold]);
  found.push(["time", seconds(about.seconds)], ["tokens", String(record.tokens)]);
  if (about.alpha !== null) found.push(["alpha", `${about.alpha.toFixed(2)} (${record.accepted} of ${record.judged})`]);
  if (record.wasted) found.push(["wasted", plural(record.wasted, "token")]);
  if (record.finish === "length") found.push(["ended by", "the token limit"]);
  return found;
}
function close() {
  document.body.classList.remove("reading");
  const button = $("list").querySelector("[aria-current]");
  if (button) button.focus(); else $("words").focus();
}

function steps(record) {
  return el("ol", { className: "steps" }, ...record.steps.map((step, n) => el("li", { className: "step", id: `s${n}`,
    style: { "--c": colour(step.outcome === "accepted" ? "accepted" : step.outcome === "corrected" ? "corrected" : "bonus") } },
    el("span", { className: "number" }, String(n + 1)),
    el("header", {}, el("b", {}, OUTCOMES[step.outcome] || step.outcome), step.outcome === "written" ? "" : el("span", {}, `kept at ${seconds(step.seconds)}`),
      el("span", {}, plural(step.tokens, "token")), step.ending === "delimiter" ? "" : el("span", {}, `ended by ${step.ending}`),
      step.abandoned ? el("span", {}, `${step.abandoned} ${step.abandoned > 1 ? "branches" : "branch"} given up`) : ""),
    versions(step), ...step.verdicts.map((verdict, i) => verdict ? ruling(verdict, step.drafts.length > 1 ? i : null) : ""))));
}
function versions(step) {
  const own = step.source === "target", pair = [];
  step.drafts.forEach((text, i) => pair.push(version(`draft${step.drafts.length > 1 ? ` ${i + 1}` : ""}`, text, !own && i === step.chosen, step.verdicts[i] && !step.verdicts[i].accepted)));
  if (step.target !== null || own || !pair.length) pair.push(version("target", step.target ?? step.text, own || !pair.length));
  return el("div", { className: "pair" }, ...pair);
}
function version(who, text, kept, refused) {
  return el("div", { className: kept ? "kept" : refused ? "gone refused" : "gone" }, el("h4", {}, el("span", {}, who), el("span", {}, kept ? "kept" : "")),
    text === null ? el("span", { className: "soft" }, "not written in time") : el("div", { className: "text" }, ...boxed(text.trim() || "(empty)")));
}
// A final answer, \boxed{...}, as a box; there may be braces in it, as \frac has them.
function boxed(text) {
  return text.split(/\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}/).map((piece, n) => n % 2 ? el("b", { className: "boxed" }, piece) : piece);
}
function ruling(verdict, which) {
  const taken = verdict.seconds ? `, ${seconds(verdict.seconds)}` : "", score = typeof verdict.score === "number" ? `, score ${verdict.score.toPrecision(3)}` : "";
  return el("p", { className: "verdict" }, which === null ? "" : `draft ${which + 1}: `, el("span", { className: verdict.accepted ? "yes" : "no" },
    verdict.accepted ? "✓ accepted" : verdict.failed ? "✗ no verdict" : "✗ rejected"), ` by ${verdict.by}${verdict.reason ? `: ${verdict.reason}` : ""}${score}${taken}`);
}

// -- timeline

function lanes(branches) {
  const rows = [];
  for (const branch of branches) {
    const row = rows.find((one) => one[one.length - 1].end <= branch.start + 1e-6);
    if (row) row.push(branch); else rows.push([branch]);
  }
  return rows;
}
function timeline(record) {
  if (!record.branches.length) return "";
  const box = el("div", { className: "timeline", tabIndex: 0, role: "img", ariaLabel: record.spoken });
  const used = new Set(record.branches.map((b) => b.outcome)), parts = new Set(record.path.map((p) => p.part));
  const zoomed = (factor) => { zoom = Math.min(64, Math.max(1, zoom * factor)); paint(box, record); };
  const wider = el("button", { type: "button", ariaLabel: "stretch the time" }, "+"), less = el("button", { type: "button", ariaLabel: "shrink the time" }, "−");
  wider.addEventListener("click", () => zoomed(2)); less.addEventListener("click", () => zoomed(0.5));
  requestAnimationFrame(() => paint(box, record));
  const key = (names) => names.map(([c, name]) => el("span", {}, el("i", { style: { "--c": colour(c) } }), name));
  return el("div", {}, el("h3", {}, el("span", { className: "zoom" }, less, " ", wider), "Timeline"), box,
    el("div", { className: "legend" }, "branches: ", ...key(["accepted", "corrected", "bonus", "rejected", "cancelled"].filter((o) => used.has(o)).map((o) => [o, o]))),
    el("div", { className: "legend" }, "critical path: ", ...key(Object.entries(index.parts).filter(([p]) => parts.has(p)))));
}
function paint(box, record) {
  const left = 58, height = 18, gap = 3, width = Math.max(300, (box.clientWidth - 4) * zoom);
  const rows = ["draft", "target", "judge"].flatMap((role) => lanes(record.branches.filter((b) => b.role === role)).map((lane) => [role, lane]));
  const bottom = 8 + rows.length * (height + gap) + 10, end = Math.max(record.seconds, ...record.branches.map((b) => b.end)) || 1;
  const x = (t) => left + (t / end) * (width - left - 10);
  const made = svg("svg", { width, height: bottom + height + 26, viewBox: `0 0 ${width} ${bottom + height + 26}` });
  for (const step of record.steps) made.append(svg("line", { x1: x(step.seconds), x2: x(step.seconds), y1: 4, y2: bottom + height, stroke: "var(--line)", "stroke-dasharray": "3 3" }));
  let last = "";
  rows.forEach(([role, lane], at) => {
    const y = 8 + at * (height + gap);
    if (role !== last) { made.append(svg("text", { x: 6, y: y + 13, class: "axis" }, role)); last = role; }
    for (const branch of lane) {
      const wide = Math.max(2, x(branch.end) - x(branch.start) - 1);
      const bar = svg("rect", { x: x(branch.start), y, width: wide, height, rx: 3, fill: colour(branch.outcome), class: "bar" });
      bar.append(svg("title", {}, `${role}, step ${branch.position + 1}: ${branch.outcome}, ${seconds(branch.end - branch.start)}${branch.generated ? `, ${branch.generated} tokens` : ""}`));
      bar.addEventListener("click", () => jump(branch.position));
      made.append(bar);
      if (wide > 18) made.append(svg("text", { x: x(branch.start) + wide / 2, y: y + 13, "text-anchor": "middle", class: branch.outcome === "cancelled" ? "inside dim" : "inside" }, String(branch.position + 1)));
    }
  });
  made.append(svg("text", { x: 6, y: bottom + 13, class: "axis" }, "critical"));
  for (const piece of record.path) {
    const bar = svg("rect", { x: x(piece.start), y: bottom, width: Math.max(0.5, x(piece.end) - x(piece.start)), height, fill: colour(piece.part) });
    bar.append(svg("title", {}, `${index.parts[piece.part]}, step ${piece.position + 1}: ${seconds(piece.end - piece.start)}`));
    made.append(bar);
  }
  const ticks = (box.clientWidth < 420 ? 2 : 4) * zoom;
  for (let tick = 0; tick <= ticks; tick++) {
    const t = (end * tick) / ticks;
    made.append(svg("text", { x: x(t), y: bottom + height + 16, class: "axis", "text-anchor": tick ? "end" : "start" }, seconds(t)));
  }
  box.replaceChildren(made);
}
function jump(n) {
  const step = $(`s${n}`);
  if (!step) return;
  step.scrollIntoView({ block: "center" });
  step.classList.add("flash");
  setTimeout(() => step.classList.remove("flash"), 1200);
}

// -- keys

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "Escape") { close(); return; }
  if (typing) return;
  if (event.key === "/") { event.preventDefault(); document.body.classList.remove("reading"); $("words").focus(); }
  const inList = $("list").contains(document.activeElement);
  const by = event.key === "j" || (inList && event.key === "ArrowDown") ? 1 : event.key === "k" || (inList && event.key === "ArrowUp") ? -1 : 0;
  if (!by || !shown.length) return;
  event.preventDefault();
  const at = shown.findIndex((record) => record.n === current), next = Math.min(shown.length - 1, Math.max(0, at + by));
  while (next >= drawn) more();
  open(shown[next].n, false);
  const button = $("list").querySelector("[aria-current]");
  if (button) { button.scrollIntoView({ block: "nearest" }); if (inList) button.focus(); }
});
let resized;
narrow.addEventListener("change", filter);
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { if (current >= 0) open(current, false); }, 150); });

summary();
options($("mode"), [["", "all"], ...index.groups.map((group, n) => [n, (index.tasks > 1 ? `${group.task}: ` : "") + group.name])]);
options($("result"), [["", "all"], ...["correct", "wrong", "failed", "ungraded"].filter((r) => index.records.some((one) => one.result === r)).map((r) => [r, r])]);
options($("order"), [["question", "question"], ["slowest", "slowest first"], ["fastest", "fastest first"], ["alpha", "lowest alpha first"]]);
$("words").addEventListener("input", filter);
filter();
const asked = Number(location.hash.slice(1));
if (location.hash && index.records[asked]) open(asked, true); else if (shown.length) open((shown.find((record) => record.alpha !== null) || shown[0]).n, false);
