// The page: reads the form, asks all questions at once, and keeps its parts together.

import { call, key } from "./api.js";
import { Card, showLegend } from "./answers.js";
import { count, el, find, many, told } from "./dom.js";
import { MediaList } from "./media.js";
import { render, show } from "./seen.js";
import { allow, refresh, watch } from "./tree.js";

/** A browser opens six connections to one server; two are left for the tree and the prompt. */
const AT_ONCE = 4;
const FORMS = {
  choices: "Choices, one a line",
  regex: "Regular expression that the whole answer matches",
  json_schema: "JSON schema of the answer",
};

const media = new MediaList(changed);
let stopper = null;
let hasSeen = false;

function questions() {
  return find("questions").value.split("\n").map((line) => line.trim()).filter(Boolean);
}

function changed() {
  const number = questions().length;
  find("count").textContent = number ? many(number, "question") : "no question yet";
  find("ask").textContent = number > 1 ? `Ask ${count(number)} questions` : "Ask";
}

/** The body of one question. Throws an error to be told if a field cannot be read. */
function bodyOf(question, parts) {
  const content = question ? [...parts, { type: "text", text: question }] : parts;
  const body = { messages: [{ role: "user", content }] };
  for (const [field, id] of [["max_tokens", "max-tokens"], ["temperature", "temperature"]]) {
    if (find(id).value !== "") body[field] = Number(find(id).value);
  }
  if (media.hasClip && find("num-frames").value !== "") body.num_frames = Number(find("num-frames").value);
  return { ...body, ...formOf(find("form-kind").value, find("form-text").value) };
}

function formOf(kind, text) {
  if (kind === "free" || !text.trim()) return {};
  if (kind === "regex") return { regex: text.trim() };
  if (kind === "choices") return { choices: text.split("\n").map((line) => line.trim()).filter(Boolean) };
  try {
    return { json_schema: JSON.parse(text) };
  } catch (error) {
    throw Object.assign(new Error(`the schema is not JSON: ${error.message}`), { field: "form-text" });
  }
}

async function ask() {
  const asked = questions();
  if (!asked.length) { problem(new Error("write a question first")); find("questions").focus(); return; }
  if (stopper) return;
  problem(null);
  stopper = new AbortController();
  busy(true);
  try {
    say(media.size ? "uploading" : "asking");
    const parts = await media.parts();
    const bodies = asked.map((question) => bodyOf(question, parts));
    rendered(bodies[0]);
    const cards = asked.map((question) => new Card(question));
    find("no-answers").hidden = true;
    find("cards").replaceChildren(...cards.map((card) => card.element));
    say(`asking ${many(asked.length, "question")}`);
    ended(await all(cards, bodies, stopper.signal));
  } catch (error) {
    failed(error);
  } finally {
    stopper = null;
    busy(false);
    refresh();
  }
}

/** Ask all, a few connections at a time; gives how each ended. */
async function all(cards, bodies, signal) {
  const ends = [];
  let next = 0;
  const work = async () => {
    while (next < cards.length) {
      const k = next;
      next += 1;
      if (signal.aborted) { cards[k].stop(); ends[k] = "stopped"; continue; }
      ends[k] = await cards[k].ask(streamed(bodies[k]), signal);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return ends;
}

const streamed = (body) =>
  ({ ...body, stream: true, stream_options: { include_usage: true }, return_timing: true });

function ended(ends) {
  const errors = ends.filter((end) => end instanceof Error);
  const stopped = ends.filter((end) => end === "stopped").length;
  const parts = [`${many(ends.length - errors.length - stopped, "answer is", "answers are")} there`];
  if (stopped) parts.push(`${count(stopped)} stopped`);
  if (errors.length) parts.push(`${count(errors.length)} refused`);
  say(parts.join(", "));
  errors.forEach(learn);
}

/** What an error says of the key and of files. */
function learn(error) {
  if (error.status === 401) find("key").focus();
  if (error.status === 404 && error.param !== "model") media.forget();
}

/** The prompt in the background, for the tree's small pictures; shown if it was asked for. */
async function rendered(body) {
  try {
    const prompt = await render(body);
    if (hasSeen) show(prompt);
  } catch {
    // the answers tell the same error
  }
}

async function see() {
  problem(null);
  const [question = ""] = questions();
  if (!question && !media.size) { problem(new Error("write a question or choose a picture first")); return; }
  find("see").disabled = true;
  find("seen-text").textContent = "rendering";
  try {
    show(await render(bodyOf(question, await media.parts())));
    hasSeen = true;
    find("see").textContent = "Show it anew";
  } catch (error) {
    find("seen-text").textContent = "";
    failed(error);
  } finally {
    find("see").disabled = false;
  }
}

function failed(error) {
  say("");
  problem(error);
  learn(error);
  if (error.field) find(error.field).focus();
}

function problem(error) {
  const place = find("problem");
  place.hidden = !error;
  place.replaceChildren(...(error ? told(error) : []));
}

function say(words) { find("status").textContent = words; }

function busy(isBusy) {
  if (!isBusy && document.activeElement === find("stop")) find("questions").focus();
  find("ask").disabled = isBusy;
  find("stop").disabled = !isBusy;
}

async function connect() {
  try {
    const [models, info, facts] = await Promise.all(
      [call("v1/models"), call("server_info"), call("model_info")]);
    find("model").textContent = models.data[0].id;
    document.title = `${models.data[0].id} \u00b7 mmserve`;
    const kernels = info.kernels[0] ?? "";
    find("facts").replaceChildren(...[
      ["family", facts.model_type], ["context", `${count(info.context_length)} tokens`],
      ["cache", `${count(info.num_slots)} tokens`], ["order", info.scheduler.policy],
      ["kernels", kernels.replace(/ kernels? compute.*$/, "")], ["version", info.version],
    ].filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    takesMedia(facts.has_image_understanding);
    problem(null);
    allow(true);
  } catch (error) {
    allow(false);
    find("model").textContent = "not connected";
    problem(error);
    learn(error);
  }
}

function takesMedia(isSeeing) {
  find("files").disabled = !isSeeing;
  find("drop").querySelector(".note").textContent =
    isSeeing ? "or drop or paste them here" : "this model takes text only";
}

function begin() {
  showLegend();
  changed();
  find("key").value = key.get();
  find("key").addEventListener("change", () => {
    key.set(find("key").value.trim());
    media.forget();
    connect();
  });
  find("key-form").addEventListener("submit", (event) => { event.preventDefault(); find("key").blur(); });
  find("questions").addEventListener("input", changed);
  find("form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  find("stop").addEventListener("click", () => stopper?.abort());
  find("see").addEventListener("click", see);
  find("form-kind").addEventListener("change", () => {
    const name = FORMS[find("form-kind").value];
    find("form-label").hidden = !name;
    find("form-name").textContent = name ?? "";
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); ask(); }
    if (event.key === "Escape") stopper?.abort();
  });
  watch();
  connect();
}

begin();
