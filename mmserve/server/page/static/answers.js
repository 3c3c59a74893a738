// Answers side by side: text as it comes, then tokens from the cache and time by stage.

import { events } from "./api.js";
import { count, el, fill, find, many, time, told } from "./dom.js";

export const STAGES = ["fetch", "decode", "preprocess", "encode", "queue", "prefill", "decode_text"];
const classOf = (stage) => stage === "queue" ? "queue-stage" : stage;

/** Cached tokens of each question's last answer, so that the next one can tell the rise. */
const before = new Map();

export function showLegend() {
  find("stages").replaceChildren(...STAGES.map((stage) =>
    el("li", {}, el("i", { class: `swatch ${classOf(stage)}` }), stage)));
}

export class Card {
  constructor(question) {
    this.question = question;
    this.text = el("p", { class: "text", "aria-live": "polite", "aria-busy": "true" });
    this.told = el("div", {});
    this.element = el("article", { class: "card", "aria-label": question },
      el("h3", {}, question), this.text, this.told);
  }

  /** Ask and show the answer as it comes; gives how it ended: done, stopped or an error. */
  async ask(body, signal) {
    let usage = null;
    let extras = null;
    let reason = null;
    try {
      for await (const event of events("v1/chat/completions", body, signal)) {
        const [choice] = event.choices;
        if (choice?.delta.content) this.text.append(choice.delta.content);
        reason = choice?.finish_reason ?? reason;
        usage = event.usage ?? usage;
        extras = event.mmserve ?? extras;
      }
      this.#finish(usage, extras, reason);
      return "done";
    } catch (error) {
      if (error.name === "AbortError") { this.stop(); return "stopped"; }
      this.told.replaceChildren(el("div", { class: "error" }, ...told(error)));
      return error;
    } finally {
      this.text.setAttribute("aria-busy", "false");
    }
  }

  /** Say that the answer was given up. */
  stop() {
    this.text.setAttribute("aria-busy", "false");
    this.told.replaceChildren(el("p", { class: "counts" }, "stopped"));
  }

  #finish(usage, extras, reason) {
    const rows = usage ? this.#counts(usage) : [];
    if (extras?.timing_ms) rows.push(...stages(extras.timing_ms));
    if (reason === "length") rows.push(el("p", { class: "counts" }, "cut at the most tokens"));
    for (const clip of extras?.clips ?? []) {
      if (clip.note) rows.push(el("p", { class: "counts" }, clip.note));
    }
    this.told.replaceChildren(...rows);
  }

  #counts(usage) {
    const details = usage.prompt_tokens_details;
    const cached = details.cached_tokens;
    const was = before.get(this.question);
    before.set(this.question, cached);
    const media = [[details.image_tokens, "image"], [details.video_tokens, "video"]]
      .filter(([number]) => number).map(([number, word]) => many(number, `${word} token`));
    const line = el("p", { class: "counts" }, el("b", { class: "cached-tokens" }, count(cached)),
      ` of ${many(usage.prompt_tokens, "prompt token")} from cache`,
      was !== undefined && was !== cached ? ` (${count(was)} before)` : "",
      media.length ? `; ${media.join(", ")}` : "",
      `; ${many(usage.completion_tokens, "token")} answered`);
    const bar = el("div", { class: "bar", "aria-hidden": "true" });
    fill(bar, [["hit", cached / Math.max(1, usage.prompt_tokens)]]);
    return [line, bar];
  }
}

function stages(timing) {
  const sum = STAGES.reduce((total, stage) => total + timing[stage], 0);
  const whole = Math.max(sum, timing.total, 1e-9);  // stages may overlap, and time may pass between
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  fill(bar, STAGES.map((stage) => [classOf(stage), timing[stage] / whole]));
  const words = STAGES.filter((stage) => timing[stage] >= 0.05).map((stage) =>
    el("span", {}, el("i", { class: `swatch ${classOf(stage)}` }), `${stage} ${time(timing[stage])}`));
  return [bar, el("p", { class: "stage-list" },
    el("span", { class: "total" }, `${time(timing.total)} in all`), ...words)];
}
