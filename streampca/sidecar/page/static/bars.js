// Bars to the left and right of a middle: one, or one for each name.

import { make } from "./dom.js";
import { dimension, short } from "./format.js";

/** A bar as long as the share, −1 to 1, of one half. */
export function bar(share) {
  const length = 50 * Math.min(Math.abs(share), 1);
  const filled = make("span", { class: share < 0 ? "minus" : "plus" });
  Object.assign(filled.style, { width: `${length}%`, marginLeft: `${share < 0 ? 50 - length : 50}%` });
  return make("span", { class: "bar" }, filled);
}

/** A bar for each entry of a vector, the longest of ±`scale`; the entry that is the greatest in `order` comes first. */
export function namedBars(vector, scale, names, order) {
  const sizes = Array.from(order, Math.abs);
  const indices = [...sizes.keys()].sort((i, j) => sizes[j] - sizes[i]);
  const lines = indices.map((j) => make("li", {},
    make("span", {}, dimension(names[j])), bar(scale > 0 ? vector[j] / scale : 0), make("span", { class: "number" }, short(vector[j]))));
  return make("ul", { class: "bars" }, ...lines);
}
