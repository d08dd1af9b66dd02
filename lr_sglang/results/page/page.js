"use strict";
// Everything that comes from a model or a file is put in as text, never as markup.
const index = JSON.parse(document.getElementById("index").textContent);
const $ = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 820px)");
const CHUNK = 100;
const MARKS = { correct: "✓", wrong: "✗", failed: "!", ungraded: "·" };
const COLOURS = { autoregressive: "controller", sd: "judge", lookahead: "target", "lookahead+sd": "draft", lossless: "queue" };
let shown = [], drawn = 0, current = -1, stood = null;

function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "style") for (const [n, v] of Object.entries(value)) made.style.setProperty(n, v);
    else if (key in made) made[key] = value; else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
const colour = (name) => `var(--${name})`;

// -- summary

function summary() {
  $("about").textContent = index.about;
  if (index.warning) { $("warning").textContent = index.warning; $("warning").hidden = false; }
  const cards = index.groups.map((group) => el("div", { className: "card", style: { "--mode": colour(COLOURS[group.mode] || "bad") } },
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
  share: (a, b) => (a.share ?? 2) - (b.share ?? 2),
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
    el("span", { className: "time" }, time(record.seconds)),
    el("span", { className: "mode" }, `${index.groups[record.group].name}${record.share === null ? "" : `, ${record.kept} ${record.share.toFixed(2)}`}, ${record.result}`));
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
    picture, el("h3", {}, plural(record.steps.length, "step")), el("div", { className: "rows" }, list));
  draw(record);
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
  found.push(["time", time(about.seconds)], ["tokens", String(record.tokens)]);
  if (about.share !== null) found.push([about.kept, `${about.share.toFixed(2)} (${record.of.join(" of ")})`]);
  if (record.wasted) found.push(["wasted", plural(record.wasted, "token")]);
  if (record.finish === "length") found.push(["ended by", "the token limit"]);
  return found;
}
function close() {
  document.body.classList.remove("reading");
  const button = $("list").querySelector("[aria-current]");
  if (button) button.focus(); else $("words").focus();
}

// -- steps and timeline of the answer that is open

const list = el("ol", { id: "steps", role: "tree", ariaLabel: "Steps" }), canvas = el("canvas", { role: "img" });
const names = el("ul", { ariaHidden: "true" }), keys = el("p", { className: "legend" });
const steps = new Steps(list, light, true);
const timeline = new Timeline(canvas, { pointed: (row) => light(row, "point"), clicked: (row) => row && steps.go(row) });
const zoom = ([how, sign, ariaLabel]) => {
  const button = el("button", { type: "button", ariaLabel }, sign);
  button.addEventListener("click", () => timeline.magnify(how));
  return button;
};
const zooms = [["out", "−", "Show more time"], ["in", "+", "Show less time"], ["fit", "all", "Show all"]].map(zoom);
const picture = el("div", {}, el("h3", {}, el("span", { className: "zoom" }, ...zooms), "Timeline"),
  el("div", { className: "timeline" }, names, canvas), keys);

function light(row, how) {
  if (how === "stand") stood = row;
  steps.light(row ?? stood);
  timeline.light(row ?? stood, how === "stand");
}
function draw(record) {
  const rows = record.steps;
  rows.forEach((row, n) => {
    Object.assign(row, { prefix: n, position: n, parent: rows[n - 1] ?? null, dead: false });
    row.drafts.forEach((draft, i) => Object.assign(draft, { number: `${n}.${i}` }));
  });
  stood = null;
  steps.clear();
  steps.update(rows);
  picture.hidden = !record.branches.length;
  const bar = (part) => ({ ...part, row: rows[part.position] ?? null, about: about(part) });
  timeline.clear(record.branches.map(bar), { marks: rows.map((row) => row.seconds), told: record.spoken });
  names.replaceChildren(...timeline.fit().map(([role, count]) => el("li", { className: role, style: { "flex-grow": count } }, role)));
  timeline.show(Math.max(record.seconds, ...record.branches.map((branch) => branch.ended)), true);
  const parts = new Set(record.branches.map((branch) => branch.part));
  const used = Object.entries(index.parts).filter(([part]) => parts.has(part));
  const looks = LOOKS.filter(([, seen]) => record.branches.some((branch) => !branch.part && seen(branch))).map(([name]) => name);
  const words = [looks.length ? `branches: ${looks.join(", ")}` : "", used.length ? "critical path: " : ""];
  keys.replaceChildren(words.filter(Boolean).join("; "), ...used.map(([part, name]) => el("span", {}, el("i", { style: { "--c": colour(part) } }), name)));
}
// How branches look in the timeline (timeline.js).
const LOOKS = [
  ["faint agreed", ({ role, state }) => role === "target" && state === "accepted"],
  ["grey given up", ({ state }) => state === "cancelled"],
  ["red refused", ({ state }) => state === "rejected"],
];
function about({ role, part, position, state, began, ended, generated }) {
  const what = part ? index.parts[part] : `${role}, step ${position + 1}: ${state}`;
  return `${what}, ${time(ended - began)}${generated ? `, ${plural(generated, "token")}` : ""}`;
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
narrow.addEventListener("change", filter);

summary();
options($("mode"), [["", "all"], ...index.groups.map((group, n) => [n, (index.tasks > 1 ? `${group.task}: ` : "") + group.name])]);
options($("result"), [["", "all"], ...["correct", "wrong", "failed", "ungraded"].filter((r) => index.records.some((one) => one.result === r)).map((r) => [r, r])]);
options($("order"), [["question", "question"], ["slowest", "slowest first"], ["fastest", "fastest first"], ["share", `lowest ${[...new Set(index.records.filter((one) => one.share !== null).map((one) => one.kept))].join(" or ") || "alpha"} first`]]);
$("words").addEventListener("input", filter);
filter();
const asked = Number(location.hash.slice(1));
if (location.hash && index.records[asked]) open(asked, true); else if (shown.length) open((shown.find((record) => record.share !== null) || shown[0]).n, false);
