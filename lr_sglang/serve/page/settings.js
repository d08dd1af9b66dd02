// The settings, kept until the tab is closed. An empty field leaves the choice to the endpoint.

const PLACE = "lr-sglang";

export class Settings {
  constructor(details) {
    this.fields = [...details.querySelectorAll("[name]")];
    this.chosen = details.querySelector("#chosen");
    this.details = details;
    const kept = recall();
    for (const field of this.fields) {
      const value = String(kept[field.name] ?? "");
      if (field.options && value) field.append(option(value)); // the endpoint's choices are not known yet
      field.value = value;
    }
    details.addEventListener("input", () => this.keep());
    this.tell();
  }

  get values() {
    return Object.fromEntries(this.fields.map((field) => [field.name, field.value.trim()]));
  }

  get key() {
    return this.values.key;
  }

  /** What the operator of the endpoint allows. */
  offer({ modes = [], verifiers = [], depth, max_depth: most }) {
    for (const [name, values] of Object.entries({ mode: modes, verifier: verifiers })) {
      const field = this.field(name);
      const chosen = field.value;
      field.replaceChildren(field.options[0], ...values.map((value) => option(String(value))));
      field.value = values.includes(chosen) ? chosen : "";
    }
    if (depth) this.field("depth").placeholder = String(depth);
    if (most) this.field("depth").max = String(most);
    this.tell();
  }

  field(name) {
    return this.fields.find((field) => field.name === name);
  }

  /** Opens the settings and focuses a field. */
  open(name) {
    this.details.open = true;
    this.field(name).focus();
  }

  /** The first field with an invalid value; null if all are valid. */
  get wrong() {
    return this.fields.find((field) => !field.checkValidity()) ?? null;
  }

  /** The request for a question. */
  body(question, model) {
    const { mode, depth, verifier, max_tokens: most, temperature } = this.values;
    const lookahead = { trace: true };
    if (mode) lookahead.mode = mode;
    if (depth) lookahead.depth = Number(depth);
    if (verifier) lookahead.verifier = verifier;
    const body = { model, messages: [{ role: "user", content: question }], stream: true };
    if (most) body.max_tokens = Number(most);
    if (temperature) body.temperature = Number(temperature);
    return { ...body, stream_options: { include_usage: true }, lookahead };
  }

  keep() {
    try {
      sessionStorage.setItem(PLACE, JSON.stringify(this.values));
    } catch {
      // no storage in this browser: they are kept in the fields
    }
    this.tell();
  }

  tell() {
    const { key, depth, max_tokens: most, temperature, ...others } = this.values;
    const parts = [others.mode, others.verifier, depth && `depth ${depth}`, most && `${most} tokens`];
    parts.push(temperature && `temperature ${temperature}`, key && "key set");
    this.chosen.textContent = parts.filter(Boolean).join(" · ");
  }
}

function option(value) {
  const element = document.createElement("option");
  element.value = element.textContent = value;
  return element;
}

function recall() {
  try {
    return Object(JSON.parse(sessionStorage.getItem(PLACE)));
  } catch {
    return {};
  }
}
