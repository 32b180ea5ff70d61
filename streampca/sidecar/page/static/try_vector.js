// The form "Try a vector": projects and reconstructs a vector that the user enters.

import * as api from "./api.js";
import { bar } from "./bars.js";
import { element, make, row } from "./dom.js";
import { recordOf, rounded } from "./example.js";
import { count, percent, short } from "./format.js";
import { fill, largest } from "./heatmap.js";

const MAX_DEVIATIONS = 4; // standard deviations at the end of a bar

/**
 * The rows of a request, {vectors} or {records}, with what a text has: JSON (a vector, a record, a list with one, or a
 * request), or numbers between separators. The sidecar checks the entries.
 */
export function parse(text, names) {
  const trimmed = text.trim();
  if (!trimmed) throw new Error("enter a vector, or fill in an example");
  return /^[[{]/.test(trimmed) ? fromJson(trimmed, names) : { vectors: [fromNumbers(trimmed)] };
}

function fromJson(text, names) {
  let content;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw new Error(`this is not JSON: ${error.message}`);
  }
  let vector = content.vectors ?? content.records ?? content;
  if (Array.isArray(vector) && typeof vector[0] === "object" && vector[0] !== null) {
    if (vector.length > 1) throw new Error(`there are ${vector.length} vectors: enter only one`);
    vector = vector[0];
  }
  if (Array.isArray(vector)) return { vectors: [vector] };
  if (!names) throw new Error("a vector is a list of numbers, like [0.5, -1, 2]");
  return { records: [vector] };
}

function fromNumbers(text) {
  return text.split(/[\s,;]+/).filter(Boolean).map((word, i) => {
    const value = Number(word);
    if (Number.isNaN(value)) throw new Error(`number ${i + 1}, “${word}”, is not a number`);
    return value;
  });
}

/** `selected()` returns the selected version and shape, {about, shape}; `onProject(coordinates)` is called after each projection. */
export class TryVector {
  #selected;
  #onProject;
  #rows = null; // those projected last, {vectors} or {records} with one
  #example = null; // of the version projected last, with its mean and scale

  constructor(selected, onProject) {
    this.#selected = selected;
    this.#onProject = onProject;
    element("try-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run(() => this.#show(parse(element("vector").value, this.#selected().about.names)));
    });
    element("example").addEventListener("click", () => this.#run(() => this.#fillIn()));
  }

  /** Project the last vector again, after the version or the shape has changed. */
  async refresh() {
    if (this.#rows) await this.#run(() => this.#show(this.#rows));
  }

  async #run(act) {
    this.#message("");
    try {
      await act();
    } catch (error) {
      this.#message(error.message, true);
      element("try-answer").hidden = true;
      this.#rows = null;
      this.#onProject(null);
    }
  }

  #message(text, bad = false) {
    element("try-message").textContent = text;
    element("try-message").classList.toggle("bad", bad);
  }

  /** The mean plus noise of the model's variances: another vector each time. */
  async #fillIn() {
    const example = await api.example(this.#selected().about.version);
    const vector = rounded(example);
    element("vector").value = example.names ? JSON.stringify(recordOf(vector, example.names), null, 1) : vector.join(", ");
    this.#message("the mean plus noise of the model's variances");
  }

  async #show(rows) {
    const { about, shape } = this.#selected();
    const { version } = about;
    const [projected, reconstructed] = await Promise.all([api.project(rows, version), api.reconstruct(rows, version)]);
    if (this.#example?.version !== version) this.#example = await api.example(version);
    this.#rows = rows;
    const [coordinates, residual, p] = [projected.coordinates[0], projected.residual[0], projected.p && projected.p[0]];
    const all = residual + coordinates.reduce((sum, value) => sum + value * value, 0);
    element("try-p").textContent = p === null ? "p is not known: the model has no past scores yet."
      : `p ${short(p)}: the share of the stream's messages that are as unusual.`;
    element("try-summary").textContent =
      `Residual ${short(residual)}: the components miss ${percent(all > 0 ? residual / all : 0)} of the vector's squared ` +
      `distance from the mean. Model version ${count(projected.version)}.`;
    const [record] = rows.records ?? [];
    const vector = record ? about.names.map((name) => record[name]) : rows.vectors[0];
    this.#draw(vector, reconstructed.vectors[0], shape, about.names);
    element("coordinates").replaceChildren(...coordinates.map((value, i) => line(i, value, about.explained_variance[i])));
    element("try-answer").hidden = false;
    this.#onProject(coordinates);
  }

  /** Draw a vector and its reconstruction; of a standardised stream, in standard deviations from the mean. */
  #draw(vector, reconstruction, shape, names) {
    const { mean, scale } = this.#example;
    const inUnits = (value, j) => (scale ? (value - mean[j]) * scale[j] : value);
    element("try-units").hidden = !scale;
    const complete = vector.map((value, j) => value ?? reconstruction[j]); // a missing entry is as the model fills it
    const [given, expected] = [complete.map(inUnits), reconstruction.map(inUnits)];
    const difference = given.map((value, j) => value - expected[j]);
    const longest = Math.max(largest(given), largest(expected));
    fill(element("try-strips"), shape, names, [
      { vector: given, caption: "your vector", label: "Your vector" },
      { vector: expected, caption: "reconstruction", label: "Its reconstruction from the components" },
      { vector: difference, caption: "difference", label: "The difference of vector and reconstruction" },
    ].map((item) => ({ ...item, scale: longest, order: difference })));
  }
}

function line(i, value, variance) {
  const deviations = variance > 0 ? value / Math.sqrt(variance) : 0;
  const cell = make("span", {}, bar(deviations / MAX_DEVIATIONS), ` ${signed(deviations)}`);
  return row(count(i + 1), short(value), cell);
}

/** Two decimals, without a minus before zero. */
const signed = (value) => (Number(value.toFixed(2)) + 0).toFixed(2);
