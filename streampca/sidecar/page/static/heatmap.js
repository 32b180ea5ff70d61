// Vectors as bars with names; more than 40 entries as heat maps: strips of colour, or pictures if their shape is known.

import { namedBars } from "./bars.js";
import { colour, make } from "./dom.js";
import { Figures } from "./figures.js";
import { count, dimension, short } from "./format.js";

const MAX_CELLS = 5000; // of a table of figures
const MAX_NAMES = 40; // beside bars
const FIRST_FIGURES = 16; // which are seen at once
const MAX_WIDTH = 1024; // a longer vector's strip shows the largest of neighbouring entries

/**
 * What "28×28", "32x32x3" or "3×32×32" means for vectors of length d: {height, width, channels, planes}, null for no text.
 * Height comes first, as in NumPy. Throws an error with a sentence if the shape does not fit.
 */
export function shapeOf(text, d) {
  if (!text.trim()) return null;
  const sizes = text.trim().split(/\s*[x×*, ]\s*/i).map(Number);
  if (sizes.length < 2 || sizes.length > 3 || sizes.some((size) => !Number.isInteger(size) || size < 1))
    throw new Error("write it as 28×28, or 32×32×3 for colour");
  const entries = sizes.reduce((product, size) => product * size);
  if (entries !== d) throw new Error(`${sizes.join("×")} are ${entries} numbers, the vectors have ${d}`);
  if (sizes.length === 2) return { height: sizes[0], width: sizes[1], channels: 1, planes: false };
  if (sizes[2] === 3) return { height: sizes[0], width: sizes[1], channels: 3, planes: false };
  if (sizes[0] === 3) return { height: sizes[1], width: sizes[2], channels: 3, planes: true };
  throw new Error("colour needs three channels: 32×32×3 or 3×32×32");
}

export const largest = (vector) => vector.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

/** The indices of the n entries with the largest magnitudes, ascending. */
const largestOf = (sizes, n) => [...sizes.keys()].sort((i, j) => sizes[j] - sizes[i]).slice(0, n).sort((i, j) => i - j);

/** A canvas with the vector; colours are saturated at ±`scale`. `names` are those of its entries, or null. */
export function draw(vector, shape, scale, label, names) {
  const nameOf = (j) => (names ? dimension(names[j]) : `dimension ${j}`);
  const most = largestOf(Array.from(vector, Math.abs), 3).map((j) => `${short(vector[j])} in ${nameOf(j)}`);
  const canvas = make("canvas", { role: "img", "aria-label": `${label}; largest entries ${most.join(", ")}` });
  const cells = shape ? cellsOf(shape) : thinned(vector);
  [canvas.width, canvas.height] = shape ? [shape.width, shape.height] : [cells.length, 1];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const paint = shape?.channels === 3 ? inColours(scale) : alongRamp(scale);
  cells.forEach((indices, i) => image.data.set(paint(indices.map((j) => vector[j])), 4 * i));
  context.putImageData(image, 0, 0);
  descriptions.set(canvas, (i) => cells[i].map((j) => `${nameOf(j)}: ${short(vector[j])}`).join(", "));
  return canvas;
}

function alongRamp(scale) {
  const [minus, zero, plus] = ["minus", "zero", "plus"].map(rgb);
  return ([entry]) => {
    const t = scale > 0 ? Math.max(-1, Math.min(1, entry / scale)) : 0;
    const end = t < 0 ? minus : plus;
    return [0, 1, 2].map((c) => zero[c] + (end[c] - zero[c]) * Math.abs(t)).concat(255);
  };
}

function inColours(scale) {
  return (entries) => entries.map((entry) => (scale > 0 ? 127.5 + (127.5 * entry) / scale : 127.5)).concat(255);
}

/** The indices of the entries of each pixel: one, or three of a picture in colour. */
function cellsOf({ height, width, channels, planes }) {
  return Array.from({ length: height * width }, (_, i) => (
    Array.from({ length: channels }, (_, c) => (planes ? c * height * width + i : channels * i + c))));
}

/** The index of the entry of each pixel of a strip: of a long vector, the largest of neighbouring entries. */
function thinned(vector) {
  const width = Math.min(vector.length, MAX_WIDTH);
  return Array.from({ length: width }, (_, i) => {
    const [from, to] = [i, i + 1].map((j) => Math.floor((j * vector.length) / width));
    let most = from;
    for (let j = from + 1; j < to; j++) if (Math.abs(vector[j]) > Math.abs(vector[most])) most = j;
    return [most];
  });
}

function rgb(name) {
  const hex = colour(name);
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/**
 * Replace the children of an element by figures, each of {vector, caption, label, scale, order}. `names` are those of the
 * entries, or null. Bars are in the order of `order`, a vector; by default, in that of their own lengths.
 */
export function fill(target, shape, names, items) {
  const hasBars = shape === null && names !== null && names.length <= MAX_NAMES;
  target.classList.toggle("pictures", shape !== null);
  target.classList.toggle("named", hasBars);
  place(target, items.map(({ vector, caption, label, scale = largest(vector), order = vector }) => {
    const drawn = hasBars ? namedBars(vector, scale, names, order) : draw(vector, shape, scale, label, names);
    return make("figure", {}, make("figcaption", {}, caption), drawn);
  }));
  if (!tables.has(target)) {
    tables.set(target, new Figures(target, target.closest("section").querySelector("h2").textContent));
    describeUnderPointer(target);
  }
  tables.get(target).show(() => table(items, names), () => values(items, names));
}

/** Put the first figures into an element, and the rest into its details, which stay open or closed. */
function place(target, figures) {
  const details = target.querySelector("details")
    ?? target.appendChild(make("details", { class: "more" }, make("summary"), make("div")));
  const [summary, rest] = details.children;
  while (target.firstChild !== details) target.firstChild.remove();
  details.before(...figures.slice(0, FIRST_FIGURES));
  rest.className = target.className;
  rest.replaceChildren(...figures.slice(FIRST_FIGURES));
  details.hidden = rest.children.length === 0;
  summary.textContent = `${rest.children.length} more`;
}

const descriptions = new WeakMap(); // by canvas: a function of the pixel's number that returns its entries as text

/** Show the entry under the pointer beside it. The table of figures has all entries for who has no pointer. */
function describeUnderPointer(target) {
  const tip = make("div", { class: "tip beside-pointer", hidden: "" });
  target.closest("section").append(tip);
  target.addEventListener("pointerleave", () => { tip.hidden = true; });
  target.addEventListener("pointermove", ({ target: canvas, clientX, clientY, offsetX, offsetY }) => {
    const describe = descriptions.get(canvas);
    tip.hidden = !describe;
    if (!describe) return;
    const [column, row] = [[offsetX, canvas.clientWidth, canvas.width], [offsetY, canvas.clientHeight, canvas.height]]
      .map(([offset, size, cells]) => Math.max(0, Math.min(cells - 1, Math.floor((offset / size) * cells))));
    tip.textContent = describe(row * canvas.width + column);
    tip.style.left = `${Math.max(0, Math.min(clientX + 12, document.documentElement.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${clientY + 16}px`;
  });
}

const tables = new Map(); // by the element above

function values(items, names) {
  return {
    columns: ["Dimension", ...items.map(({ label }) => label)],
    rows: Array.from(items[0].vector, (_, j) => [names ? names[j] : j, ...items.map(({ vector }) => vector[j])]),
  };
}

/** A row for each dimension; of many, those with the largest entries. */
function table(items, names) {
  const d = items[0].vector.length;
  const sizes = Array.from({ length: d }, (_, j) => Math.max(...items.map(({ vector }) => Math.abs(vector[j]))));
  const rows = largestOf(sizes, Math.ceil(MAX_CELLS / items.length));
  return {
    columns: ["Dimension", ...items.map(({ caption }) => caption)],
    rows: rows.map((j) => [dimension(names ? names[j] : j), ...items.map(({ vector }) => short(vector[j]))]),
    note: rows.length < d && `The ${count(rows.length)} of ${count(d)} dimensions with the largest entries`,
  };
}

