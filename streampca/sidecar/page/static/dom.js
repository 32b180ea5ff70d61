// Helpers for the document.

import { count, time } from "./format.js";

export const element = (id) => document.getElementById(id);

/** Set the text of an element only if it differs, so that screen readers announce changes alone. */
export function setText(id, text) {
  const target = element(id);
  if (target.textContent !== text) target.textContent = text;
}

export function setStatus(kind, text) {
  element("status").dataset.state = kind;
  setText("status", text);
}

export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const row = (...cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Show which of all versions in the store a slider selects; null: none. */
export function showSlider(id, about, versions) {
  const index = versions.indexOf(about?.version);
  Object.assign(element(id), { max: versions.length - 1, value: index });
  const position = index < 0 ? "no longer in the store" : `${index + 1} of ${versions.length}`;
  setText(`${id}-value`, about ? `${count(about.version)} (${position}), published ${time(about.published_at)}` : "none");
  element(id).setAttribute("aria-valuetext", element(`${id}-value`).textContent);
}
