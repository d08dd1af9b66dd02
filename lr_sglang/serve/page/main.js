// The page: sends a question and updates the tree, the timeline and the figures from the response.

import { AnswerView } from "./answer.js";
import { Exchange } from "./exchange.js";
import { Figures } from "./figures.js";
import { glyph } from "./glyph.js";
import { inWords } from "./problems.js";
import { Ready } from "./ready.js";
import { Settings } from "./settings.js";
import { Steps } from "./steps.js";
import { Timeline } from "./timeline.js";
import { Tree } from "./tree.js";
import { plural, round, time } from "./words.js";

const at = (selector) => document.querySelector(selector);
const question = at("#question");
const work = at("#work");
const trouble = at("#trouble");
const settings = new Settings(at("#settings"));
const figures = new Figures(at("#figures"));
const answer = new AnswerView(at("#answer"));
const steps = new Steps(at("#steps"), (row, how) => light(row, how));
const timeline = new Timeline(at("#timeline canvas"), {
  pointed: (row) => light(row, "point"),
  clicked: (row) => row && steps.go(row),
});

let tree = new Tree();
let exchange = null; // the running one
let model = "";
let stood = null; // the selected row
let asked = "";

/** Highlights a row in the steps and in the timeline: the one under the pointer, else the selected one. */
function light(row, how) {
  if (how === "stand") stood = row;
  steps.light(row ?? stood);
  timeline.light(row ?? stood, how === "stand");
}

function frame() {
  const now = tree.finish || !exchange ? tree.seconds : exchange.now;
  const follow = atEnd();
  if (tree.changed.size) {
    steps.update(tree.changed);
    tree.changed.clear();
  }
  answer.update(!exchange);
  figures.show(tree, now);
  timeline.show(now, !exchange);
  if (follow && exchange && !stood) toEnd();
  if (exchange) requestAnimationFrame(frame);
}

const scroller = () => (work.scrollHeight > work.clientHeight + 1 ? work : null);

function atEnd() {
  const box = scroller();
  return box !== null && box.scrollHeight - box.scrollTop - box.clientHeight < 120;
}

function toEnd() {
  const box = scroller();
  if (box) box.scrollTop = box.scrollHeight;
}

function begin(text) {
  asked = text;
  stood = null;
  tree = new Tree();
  steps.clear();
  answer.clear(text);
  timeline.clear(tree.bars);
  trouble.hidden = true;
  at("#legend").hidden = true;
  document.body.dataset.state = "asking";
  at("#stop").disabled = false;
  say("Asked.");
}

async function send(text) {
  if (exchange || !text) return;
  const wrong = settings.wrong;
  if (wrong) {
    settings.open(wrong.name);
    wrong.reportValidity();
    return;
  }
  begin(text);
  const mine = new Exchange({
    event: (event) => tree.apply(event),
    reasoning: (piece) => answer.add("reasoning", piece),
    content: (piece) => answer.add("content", piece),
    finish: (why) => (answer.finish.textContent = why === "length" ? "cut at the token limit" : "complete"),
    summary: (summary, usage) => summarise(summary, usage),
    waiting: (left) => wait(left),
  });
  exchange = mine;
  requestAnimationFrame(frame);
  let state = "done";
  try {
    await meet();
    await mine.run(settings.body(text, model), settings.key);
  } catch (error) {
    state = error?.name === "AbortError" ? "stopped" : "failed";
    if (state === "failed") fail(error);
  }
  finish(mine, state);
}

function finish(mine, state) {
  if (!tree.finish) tree.apply({ kind: "ended", seconds: Math.max(tree.seconds, mine.now), outcome: state });
  exchange = null;
  document.body.dataset.state = state;
  at("#stop").disabled = true;
  if (state === "stopped") {
    answer.finish.textContent = "stopped";
    show("");
  }
  if (state === "failed") answer.finish.textContent = "";
  frame();
  const alpha = tree.alpha === null ? "" : `, acceptance ${round(tree.alpha)}`;
  say(`Answer ${state === "done" ? "complete" : state}: ${plural(tree.steps, "step")}${alpha}, ${time(tree.seconds)}.`);
  if (document.activeElement === at("#stop") || document.activeElement === document.body) question.focus();
}

function summarise(summary, usage) {
  const facts = [];
  if (summary.mode) facts.push(summary.mode);
  if (summary.degraded) facts.push("degraded: the target alone");
  if (summary.drafted_tokens) facts.push(`${summary.drafted_tokens} tokens drafted, ${summary.wasted_tokens ?? 0} wasted`);
  if (summary.judged_tokens) facts.push(`${summary.judged_tokens} judged, ${summary.own_tokens} the target's own`);
  if (usage?.completion_tokens) facts.push(`${usage.completion_tokens} delivered`);
  answer.finish.textContent = [answer.finish.textContent, ...facts].filter(Boolean).join(" · ");
}

function wait(left) {
  show(left ? `${inWords({ status: 429 }, 0)} Asking again in ${left} s. Escape gives up.` : "");
}

function fail(problem) {
  const text = problem.kind ? inWords(problem, tree.steps) : `This page failed: ${problem.message}`;
  const wait = problem.wait && problem.status !== 429 ? ` Try again in ${problem.wait} s.` : "";
  show(text + wait, true);
  if (problem.status === 404) model = ""; // the endpoint may have another by now
  if (problem.status === 401 || problem.status === 403 || problem.kind === "key") settings.open("key");
}

function show(text, again = false) {
  trouble.hidden = !text;
  trouble.querySelector("p").textContent = text;
  trouble.querySelector("button").hidden = !again;
}

function say(text) {
  at("#status").textContent = text;
}

/** The endpoint's model; empty if it cannot be read: the user then sees the error of the question itself. */
async function findModel() {
  try {
    const headers = settings.key ? { authorization: `Bearer ${settings.key}` } : {};
    const list = await (await fetch("v1/models", { headers, signal: AbortSignal.timeout(5000) })).json();
    const [about] = list.data;
    const name = String(about.id);
    if (about.lookahead) settings.offer(about.lookahead);
    at("#model").textContent = name;
    return name;
  } catch {
    return "";
  }
}

at("#composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(question.value.trim());
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send(question.value.trim());
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) exchange?.stop();
});
at("#stop").addEventListener("click", () => exchange?.stop());
trouble.querySelector("button").addEventListener("click", () => send(asked));
for (const button of document.querySelectorAll("[data-zoom]")) {
  button.addEventListener("click", () => timeline.magnify(button.dataset.zoom));
}
for (const item of document.querySelectorAll("#legend [data-glyph]")) item.prepend(glyph(item.dataset.glyph));
new Ready(at("#lamps"), at("#notice"));
const meet = async () => (model ||= await findModel());
settings.field("key").addEventListener("change", meet);
meet();
