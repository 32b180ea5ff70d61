// Helpers for the document.

export const element = (id) => document.getElementById(id);

/** Set the text of an element only if it differs, so that screen readers announce changes alone. */
export function setText(id, text) {
  const target = element(id);
  if (target.textContent !== text) target.textContent = text;
}

export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const row = (...cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
