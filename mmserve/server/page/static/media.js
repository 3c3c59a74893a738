// Pictures and clips: chosen, dropped or pasted, uploaded once, and then named by id.

import { ApiError, call } from "./api.js";
import { el, find } from "./dom.js";

const CLIP = /\.(mp4|m4v|mov|mkv|webm|avi|m?ts|mpe?g|ogv|flv|wmv|3gp)$/i;

export class MediaList {
  #items = [];
  #list = find("media");

  /** `onChange` hears of every change. */
  constructor(onChange) {
    this.onChange = onChange;
    const input = find("files");
    const drop = find("drop");
    input.addEventListener("change", () => { this.add(input.files); input.value = ""; });
    for (const kind of ["dragenter", "dragover"]) {
      drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
    }
    for (const kind of ["dragleave", "drop"]) {
      drop.addEventListener(kind, () => drop.classList.remove("over"));
    }
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      if (!input.disabled) this.add(event.dataTransfer.files);
    });
    document.addEventListener("paste", (event) => {
      const files = event.clipboardData?.files ?? [];
      if (files.length && !input.disabled) { event.preventDefault(); this.add(files); }
    });
  }

  get size() { return this.#items.length; }

  get hasClip() { return this.#items.some((item) => item.isClip); }

  /** Show files and begin to upload them. */
  add(files) {
    for (const file of files) {
      const isClip = file.type.startsWith("video/") || CLIP.test(file.name);
      const item = { file, isClip, id: null, upload: null, url: URL.createObjectURL(file) };
      this.#show(item);
      this.#items.push(item);
      this.#upload(item).catch(() => {});  // told beside the file, and by `parts`
    }
    this.onChange();
  }

  /** Content parts that name every file, once all are uploaded. Raises ApiError. */
  async parts() {
    const ids = await Promise.all(this.#items.map((item) => item.id ?? this.#upload(item)));
    return this.#items.map(({ isClip }, k) => isClip
      ? { type: "video_url", video_url: { url: ids[k] } }
      : { type: "image_url", image_url: { url: ids[k] } });
  }

  /** The server knows the ids no more, or the key is another: upload again when asked. */
  forget() {
    for (const item of this.#items) {
      Object.assign(item, { id: null, upload: null });
      item.state.textContent = "to be uploaded";
    }
  }

  #upload(item) {
    item.upload ??= this.#send(item).catch((error) => {
      item.upload = null;
      item.state.textContent = `not uploaded: ${error.message}`;
      item.state.classList.add("failed");
      throw error;
    });
    return item.upload;
  }

  async #send(item) {
    item.state.classList.remove("failed");
    item.state.textContent = "uploading";
    const body = new FormData();
    body.append("file", item.file, item.file.name || "pasted");
    body.append("purpose", "vision");
    const { id } = await call("v1/files", { body });
    if (!id) throw new ApiError("the server gave the file no id");
    item.id = id;
    item.state.textContent = "uploaded";
    return id;
  }

  #show(item) {
    const name = item.file.name || "pasted picture";
    const view = item.isClip
      ? el("video", { src: item.url, preload: "metadata", playsinline: true, "aria-hidden": "true" })
      : el("img", { src: item.url, alt: "" });
    if (item.isClip) view.muted = true;
    view.addEventListener("error", () => view.replaceWith(  // a format that this browser does not know
      el("span", { class: "unseen" }, item.isClip ? "clip" : "picture")));
    item.state = el("span", { class: "state" });
    const remove = el("button", { type: "button", "aria-label": `Remove ${name}`, title: "Remove" }, "\u00d7");
    item.li = el("li", {}, view, el("span", { class: "file", title: name }, name), item.state, remove);
    remove.addEventListener("click", () => this.#remove(item));
    this.#list.append(item.li);
  }

  #remove(item) {
    const next = item.li.nextElementSibling ?? item.li.previousElementSibling;
    (next?.querySelector("button") ?? find("files")).focus();
    item.li.remove();
    URL.revokeObjectURL(item.url);
    this.#items = this.#items.filter((other) => other !== item);
    item.upload?.then((id) => call(`v1/files/${id}`, { method: "DELETE" })).catch(() => {});
    this.onChange();
  }
}
