// Heat maps of vectors: strips of colour, or pictures if their shape is known.

import { colour, make } from "./dom.js";
import { Figures } from "./figures.js";
import { count, dimension, short } from "./format.js";

const MAX_CELLS = 5000; // of a table of figures
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
  const most = largestOf(Array.from(vector, Math.abs), 3).map((j) => (
    `${short(vector[j])} in ${names ? dimension(names[j]) : `dimension ${j}`}`));
  const canvas = make("canvas", { role: "img", "aria-label": `${label}; largest entries ${most.join(", ")}` });
  const entries = shape ? vector : thinned(vector);
  [canvas.width, canvas.height] = shape ? [shape.width, shape.height] : [entries.length, 1];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const paint = shape?.channels === 3 ? inColours(entries, shape, scale) : alongRamp(entries, scale);
  for (let i = 0; i < canvas.width * canvas.height; i++) image.data.set(paint(i), 4 * i);
  context.putImageData(image, 0, 0);
  return canvas;
}

function alongRamp(entries, scale) {
  const [minus, zero, plus] = ["minus", "zero", "plus"].map(rgb);
  return (i) => {
    const t = scale > 0 ? Math.max(-1, Math.min(1, entries[i] / scale)) : 0;
    const end = t < 0 ? minus : plus;
    return [0, 1, 2].map((c) => zero[c] + (end[c] - zero[c]) * Math.abs(t)).concat(255);
  };
}

function inColours(entries, { height, width, planes }, scale) {
  const at = planes ? (i, c) => entries[c * height * width + i] : (i, c) => entries[3 * i + c];
  return (i) => [0, 1, 2].map((c) => (scale > 0 ? 127.5 + (127.5 * at(i, c)) / scale : 127.5)).concat(255);
}

function thinned(vector) {
  if (vector.length <= MAX_WIDTH) return vector;
  return Array.from({ length: MAX_WIDTH }, (_, i) => {
    const [from, to] = [i, i + 1].map((j) => Math.floor((j * vector.length) / MAX_WIDTH));
    return vector.slice(from, to).reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most), 0);
  });
}

function rgb(name) {
  const hex = colour(name);
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** Replace the children of an element by heat maps, each of {vector, caption, label, scale}. */
export function fill(target, shape, names, items) {
  target.classList.toggle("pictures", shape !== null);
  const figures = items.map(({ vector, caption, label, scale }) =>
    make("figure", {}, make("figcaption", {}, caption), draw(vector, shape, scale ?? largest(vector), label, names)));
  target.replaceChildren(...figures);
  if (!tables.has(target)) tables.set(target, new Figures(target, target.closest("section").querySelector("h2").textContent));
  tables.get(target).show(() => table(items, names), () => values(items, names));
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

