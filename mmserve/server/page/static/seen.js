// What the model sees: the rendered prompt token by token, with pictures and sampled frames.

import { call } from "./api.js";
import { el, find, many } from "./dom.js";

const MOST_KEPT = 400;

/** Small pictures by the identity that the tree tells, of media this page has rendered. */
export const thumbnails = new Map();

/** Render a chat body; remembers its pictures. Raises ApiError. */
export async function render(body) {
  const prompt = await call("v1/render", { json: body });
  for (const piece of prompt.pieces) {
    if (piece.identity && piece.pictures.length) {
      thumbnails.delete(piece.identity);
      thumbnails.set(piece.identity, piece.pictures[0]);
    }
  }
  for (const identity of [...thumbnails.keys()].slice(0, -MOST_KEPT)) thumbnails.delete(identity);
  return prompt;
}

/** Draw a rendered prompt. */
export function show(prompt) {
  const { prompt_tokens: all, image_tokens: images, video_tokens: frames } = prompt.usage;
  const parts = [[images, "of pictures"], [frames, "of frames"]]
    .filter(([number]) => number).map(([number, word]) => `${number.toLocaleString("en")} ${word}`);
  find("seen-text").textContent =
    `${many(all, "token")}${parts.length ? `, ${parts.join(", ")}` : ""}. A box is a token.`;
  const notes = prompt.clips.filter((clip) => clip.note).map((clip) => el("p", { class: "note" }, clip.note));
  find("seen").replaceChildren(
    el("div", { class: "prompt" }, ...prompt.pieces.flatMap(piece)), ...notes,
    folded("Template text", prompt.text),
    folded("Token ids", prompt.token_ids.join(" ")));
}

function piece(part) {
  if (part.kind !== "text") return [figure(part)];
  const tokens = part.tokens.map((text) => el("span", {
    class: /^<.*>$/.test(text) ? "token special" : "token",
  }, text.replaceAll("\n", "\u21b5\n")));
  const hidden = part.num_tokens - part.tokens.length;
  if (hidden > 0) tokens.push(el("span", { class: "note" }, ` and ${many(hidden, "token")} more`));
  return [el("span", {}, ...tokens), " "];
}

function figure(part) {
  const isFrame = part.kind === "frame";
  const times = part.timestamps_s.map((second) => `${second.toFixed(2)} s`).join(", ");
  const name = isFrame ? `frame at ${times || "no time"}` : "picture";
  const pictures = part.pictures.map((src) => el("img", { src, alt: name }));
  return el("figure", {},
    el("div", { class: "strip" }, ...pictures),
    el("figcaption", {}, el("b", {}, name),
      `${part.width} \u00d7 ${part.height} pixels`, el("br"),
      `${many(part.num_tokens, "token")} from ${part.start.toLocaleString("en")}`));
}

function folded(name, text) {
  return el("details", {}, el("summary", {}, name), el("pre", { class: "plain", tabindex: "0" }, text));
}
