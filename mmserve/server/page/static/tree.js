// The radix tree, memory and the queue, drawn once a second while they can be seen; less often
// where the server takes long to tell.

import { call } from "./api.js";
import { count, el, fill, find, many } from "./dom.js";
import { thumbnails } from "./seen.js";

const EVERY_MS = 1000;
const LEAST_REST = 2;
const ROOT_PX = 84;
const GAP_PX = 3;
const LEAST_PX = 46;
const LEAST_LEAF_PX = 120;
const MOST_PX_A_TOKEN = 12;
/** No key, or one that is not the operator's. */
const REFUSED = [401, 403];

let isInView = false;
let isLetIn = false;
let timer = null;
let drawn = "";

/** The server answers, or refuses the key: then it is not asked again before the next one. */
export function allow(isAllowed) {
  isLetIn = isAllowed;
  wake();
}

/** Ask now, not in a second: something has ended. */
export function refresh() {
  if (timer === null) return;
  clearTimeout(timer);
  timer = setTimeout(tick, 0);
}

/** Begin; the server is asked only while the panel is on the screen. */
export function watch() {
  new IntersectionObserver(([entry]) => { isInView = entry.isIntersecting; wake(); })
    .observe(find("live-title").parentElement);
  document.addEventListener("visibilitychange", wake);
  new ResizeObserver(() => { drawn = ""; }).observe(find("tree"));
}

function wake() {
  const isSeen = isLetIn && isInView && document.visibilityState === "visible";
  if (isSeen && timer === null) timer = setTimeout(tick, 0);
  if (!isSeen) { clearTimeout(timer); timer = null; }
}

async function tick() {
  const mine = timer;
  const begun = performance.now();
  try {
    update(await call("show/radix.json"));
  } catch (error) {
    if (REFUSED.includes(error.status)) close(error);
    else find("tree-text").textContent = error.message;
    drawn = "";
  }
  if (!isLetIn) timer = null;
  if (timer !== null && timer === mine) timer = setTimeout(tick, Math.max(EVERY_MS, LEAST_REST * (performance.now() - begun)));
}

/** Say why nothing is shown in place of what an earlier key let in, and stop asking. */
function close({ message, hint }) {
  isLetIn = false;
  find("tree").replaceChildren();
  for (const bar of ["slots", "features"]) { fill(find(bar), []); find(`${bar}-text`).textContent = "not shown"; }
  for (const number of ["running", "waiting"]) find(number).textContent = "\u2013";
  find("tree-text").textContent = `The tree is not shown: ${[message, hint].filter(Boolean).join("; ")}.`;
}

function update(told) {
  gauges(told);
  const shape = JSON.stringify([told.nodes.map(({ age, ...node }) => node), [...thumbnails.keys()]]);
  if (shape === drawn) return;
  drawn = shape;
  find("tree-text").textContent = `${many(told.num_nodes, "node")}, ${many(told.num_tokens, "token")}: `
    + `${count(told.num_pinned_tokens)} in use, ${count(told.num_tokens - told.num_pinned_tokens)} kept; `
    + `${many(told.num_evicted_tokens, "token")} evicted so far.`;
  const nodes = told.nodes.map((node) => ({ ...node, below: [] }));
  const roots = [];
  for (const node of nodes) (node.parent === null ? roots : nodes[node.parent].below).push(node);
  const scale = fitting(roots, find("tree").clientWidth - ROOT_PX);
  const rest = told.num_hidden_namespaces
    ? el("p", { class: "more" }, `${many(told.num_hidden_namespaces, "more namespace")}`) : null;
  find("tree").replaceChildren(el("ul", {}, ...roots.map((root) => item(root, scale))), ...(rest ? [rest] : []));
}

function gauges({ slots, features, queue }) {
  find("running").textContent = count(queue.running);
  find("waiting").textContent = count(queue.waiting);
  fill(find("slots"), [["pinned", slots.held / slots.all], ["cached", slots.cached / slots.all]]);
  find("slots-text").textContent =
    `${count(slots.held)} in use, ${count(slots.cached)} kept, ${count(slots.free)} free of ${many(slots.all, "token")}`;
  const all = Math.max(1, features.all);
  fill(find("features"), [["pinned", features.pinned / all], ["cached", features.kept / all]]);
  find("features-text").textContent =
    `${many(features.num_items, "item")}: ${count(features.pinned)} in use, ${count(features.kept)} kept `
    + `of ${many(features.all, "token")}`;
}

function width({ num_tokens: tokens, below }, scale) {
  return Math.max(below.length ? LEAST_PX : LEAST_LEAF_PX, tokens * scale);
}

/** The largest scale, in pixels a token, at which the longest prompt fits. */
function fitting(roots, room) {
  const paths = [];
  const walk = (node, path) => {
    const own = node.parent === null ? path : [...path, node];
    if (!node.below.length) paths.push(own);
    node.below.forEach((child) => walk(child, own));
  };
  roots.forEach((root) => walk(root, []));
  let [low, high] = [0, MOST_PX_A_TOKEN];
  for (let round = 0; round < 24; round += 1) {
    const middle = (low + high) / 2;
    const fits = paths.every((path) =>
      path.reduce((sum, node) => sum + width(node, middle) + GAP_PX, 0) <= room);
    if (fits) low = middle; else high = middle;
  }
  return low;
}

function item(node, scale) {
  const below = node.below.map((child) => item(child, scale));
  if (node.num_hidden) below.push(el("li", { class: "more" }, `${count(node.num_hidden)} more branches`));
  return el("li", {}, run(node, scale), below.length ? el("ul", {}, ...below) : null);
}

function run(node, scale) {
  if (node.parent === null) return el("div", { class: "run root" }, el("span", { class: "facts-line" }, node.namespace));
  const notes = [
    node.hits && many(node.hits, "hit"),
    node.pins && `in use by ${count(node.pins)}`,
    node.waiting && `${count(node.waiting)} waiting`,
  ].filter(Boolean);
  const state = node.state === "wished" || node.state === "evicted" ? ` ${node.state}` : "";
  const words = [`${many(node.num_tokens, "token")}${state}`, ...notes].join(", ");
  const media = node.pieces.filter((piece) => piece.kind !== "text");
  const title = [words, ...media.map(meaning)].join("\n");
  const box = el("div", { class: `run ${node.state}`, title },
    el("div", { class: "pieces" }, ...node.pieces.map(piece)),
    el("span", { class: "facts-line" }, [count(node.num_tokens) + state, ...notes].join(" \u00b7 ")));
  box.style.setProperty("--wide", `${width(node, scale)}px`);
  return box;
}

const meaning = ({ kind, start, end }) => `${kind}, its tokens ${start} to ${end}`;

function piece(part) {
  const src = thumbnails.get(part.identity);
  const element = src
    ? el("img", { src, alt: meaning(part) })
    : el("span", { class: part.kind === "text" ? "words" : "other" });
  element.style.flex = `${part.num_tokens} 1 0`;
  return element;
}
