// The form "Try a vector": projects and reconstructs a vector that the user enters.

import * as api from "./api.js";
import { element, make, row } from "./dom.js";
import { count, dimension, percent, short } from "./format.js";
import { fill, largest } from "./heatmap.js";

const MAX_DEVIATIONS = 4; // standard deviations at the end of a bar

/** The numbers in a text: JSON (a vector, a record, a list with one, or a request), or numbers between separators. */
export function parse(text, names) {
  const trimmed = text.trim();
  if (!trimmed) throw new Error("enter a vector, or fill in the example");
  return /^[[{]/.test(trimmed) ? fromJson(trimmed, names) : fromNumbers(trimmed);
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
  if (names && !Array.isArray(vector)) vector = fromRecord(vector, names);
  if (!Array.isArray(vector)) throw new Error("a vector is a list of numbers, like [0.5, -1, 2]");
  return vector; // the sidecar checks the entries
}

function fromRecord(record, names) {
  const missing = names.find((name) => !Object.hasOwn(record, name));
  if (missing !== undefined) throw new Error(`the record has no ${dimension(missing)}`);
  return names.map((name) => record[name]);
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
  #vector = null; // the one projected last

  constructor(selected, onProject) {
    this.#selected = selected;
    this.#onProject = onProject;
    element("try-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run(() => this.#show(parse(element("vector").value, this.#selected().about.names)));
    });
    element("example").addEventListener("click", () => this.#run(() => this.#example()));
  }

  /** Project the last vector again, after the version or the shape has changed. */
  async refresh() {
    if (this.#vector) await this.#run(() => this.#show(this.#vector));
  }

  async #run(act) {
    this.#message("");
    try {
      await act();
    } catch (error) {
      this.#message(error.message, true);
      element("try-answer").hidden = true;
      this.#vector = null;
      this.#onProject(null);
    }
  }

  #message(text, bad = false) {
    element("try-message").textContent = text;
    element("try-message").classList.toggle("bad", bad);
  }

  /** The mean plus one standard deviation along the first component. */
  async #example() {
    const { about } = this.#selected();
    const coordinates = about.explained_variance.map((variance, i) => (i === 0 ? Math.sqrt(variance) : 0));
    const { vectors } = await api.fromCoordinates(coordinates, about.version);
    element("vector").value = rounded(vectors[0]).join(", ");
    this.#message("the mean plus one standard deviation along component 1");
  }

  async #show(vector) {
    const { about, shape } = this.#selected();
    const [projected, reconstructed] = await Promise.all([
      api.project(vector, about.version), api.reconstruct(vector, about.version),
    ]);
    this.#vector = vector;
    const [coordinates, residual] = [projected.coordinates[0], projected.residual[0]];
    const all = residual + coordinates.reduce((sum, value) => sum + value * value, 0);
    element("try-summary").textContent =
      `Residual ${short(residual)}: the components miss ${percent(all > 0 ? residual / all : 0)} of the vector's squared ` +
      `distance from the mean. Model version ${count(projected.version)}.`;
    this.#strips(vector, reconstructed.vectors[0], shape, about.names);
    element("coordinates").replaceChildren(...coordinates.map((value, i) => line(i, value, about.explained_variance[i])));
    element("try-answer").hidden = false;
    this.#onProject(coordinates);
  }

  #strips(vector, reconstruction, shape, names) {
    const scale = Math.max(largest(vector), largest(reconstruction));
    const difference = vector.map((value, i) => value - reconstruction[i]);
    fill(element("try-strips"), shape, names, [
      { vector, caption: "your vector", label: "Your vector", scale },
      { vector: reconstruction, caption: "reconstruction", label: "Its reconstruction from the components", scale },
      { vector: difference, caption: "difference", label: "The difference of vector and reconstruction", scale },
    ]);
  }
}

function line(i, value, variance) {
  const deviations = variance > 0 ? value / Math.sqrt(variance) : 0;
  const cell = make("span", {}, bar(deviations), ` ${signed(deviations)}`);
  return row(count(i + 1), short(value), cell);
}

/** Rounded to six digits of the largest entry, so that tiny entries become 0. */
function rounded(vector) {
  const digits = Math.max(0, Math.min(100, 5 - Math.floor(Math.log10(largest(vector) || 1))));
  return vector.map((value) => Number(value.toFixed(digits)) + 0);
}

/** Two decimals, without a minus before zero. */
const signed = (value) => (Number(value.toFixed(2)) + 0).toFixed(2);

/** A bar from the middle, to the left or right. */
function bar(deviations) {
  const length = (Math.min(Math.abs(deviations), MAX_DEVIATIONS) / MAX_DEVIATIONS) * 50;
  const filled = make("span", { class: deviations < 0 ? "minus" : "plus" });
  Object.assign(filled.style, { width: `${length}%`, marginLeft: `${deviations < 0 ? 50 - length : 50}%` });
  return make("span", { class: "bar" }, filled);
}
