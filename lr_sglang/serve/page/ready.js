// Whether the runtimes are up: asks the endpoint every few seconds while the page is visible.

const EVERY = 3000;
const ROLES = ["draft", "target", "judge"];

export class Ready {
  constructor(lamps, notice) {
    Object.assign(this, { lamps, notice, timer: 0 });
    document.addEventListener("visibilitychange", () => this.look());
    this.look();
  }

  async look() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    this.show(await read());
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), EVERY);
  }

  show(state) {
    const down = [];
    for (const role of ROLES) {
      const is = state ? roleState(state.roles?.[role]) : "unreachable";
      const lamp = this.lamps.querySelector(`[data-role=${role}]`);
      lamp.dataset.is = is;
      lamp.hidden = Boolean(state?.roles?.target) && !(role in state.roles); // a deployment may have no judge
      lamp.title = `${role}: ${is}`;
      lamp.querySelector(".hidden").textContent = is;
      if (is === "down") down.push(role);
    }
    const found = state?.roles?.judge?.false_accepts;
    this.lamps.querySelector("#accepts").textContent = found ? accepts(found) : "";
    const text = inWords(state, down);
    if (this.notice.textContent !== text) this.notice.textContent = text;
    this.notice.hidden = !text;
  }
}

async function read() {
  try {
    const response = await fetch("ready", { cache: "no-store", signal: AbortSignal.timeout(EVERY) });
    const state = await response.json();
    return state && typeof state === "object" ? state : {};
  } catch (error) {
    return error instanceof SyntaxError ? {} : null; // a reply that is no JSON is a reply all the same
  }
}

function roleState(value) {
  const said = value !== null && typeof value === "object" ? (value.status ?? value.state ?? value.up) : value;
  if (said === true || said === "up" || said === "ready" || said === "ok") return "up";
  return said === undefined || said === null ? "unknown" : said === false || said === "down" ? "down" : String(said).slice(0, 20);
}

function accepts({ accepted, asked, interval: [low, high] }) {
  return `accepts ${accepted} of ${asked} that differ (${low.toFixed(2)} to ${high.toFixed(2)})`;
}

function inWords(state, down) {
  if (!state) return "The endpoint does not answer. The page tries again every few seconds.";
  if (down.includes("target") || state.status === "down") {
    return "The target is down: no question can be answered until it is back.";
  }
  if (down.length || state.status === "degraded") {
    const who = down.length ? `The ${down.join(" and the ")} ${down.length > 1 ? "are" : "is"} down` : "Degraded";
    return `${who}: answers are as good as ever, but slower. The target works alone until that is mended.`;
  }
  if (state.roles?.judge?.false_accepts?.trusted === false) {
    return "The judge accepts steps that differ, so nothing is drafted, and the target answers alone.";
  }
  if (state.status === "draining") return "The endpoint is shutting down: it finishes running answers and takes no new questions.";
  return "";
}
