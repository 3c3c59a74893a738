// Small things of a page: elements, numbers in words, refusals.

/** An element with attributes and children; text is always text, never markup. */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(attribute, "");
    else if (value !== false && value != null) element.setAttribute(attribute, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export const find = (id) => document.getElementById(id);

export const count = (number) => Math.round(number).toLocaleString("en");

/** "1 hit", "3 hits". */
export const many = (number, word, words = `${word}s`) => `${count(number)} ${number === 1 ? word : words}`;

/** Milliseconds as people read them. */
export function time(ms) {
  if (ms >= 10000) return `${(ms / 1000).toFixed(1)} s`;
  return ms >= 100 ? `${Math.round(ms)} ms` : `${ms.toFixed(1)} ms`;
}

/** A refusal with its way out on a line of its own. */
export function told(error) {
  const where = error.param ? ` (${error.param})` : "";
  const parts = [el("span", {}, `${error.message}${where}`)];
  if (error.hint) parts.push(el("span", { class: "hint" }, error.hint));
  return parts;
}

/** A bar of parts, [class, share of the whole] each. */
export function fill(bar, parts) {
  bar.replaceChildren(...parts.filter(([, share]) => share > 0).map(([kind, share]) => {
    const part = el("span", { class: kind });
    part.style.width = `${Math.min(100, share * 100)}%`;
    return part;
  }));
}
