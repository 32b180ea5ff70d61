// The box for a vector of one's own.

import * as api from "./api.js";
import { fill, largest } from "./heat.js";
import { count, element, make, percent, row, short } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const DEVIATIONS = 4; // where the bars end

/** The numbers of a text: JSON (a vector, a list that holds one, or a request) or numbers with anything between them. */
export function parse(text) {
  const trimmed = text.trim();
  if (!trimmed) throw new Error("there is nothing here yet: paste a vector, or take the example");
  return /^[[{]/.test(trimmed) ? fromJson(trimmed) : fromWords(trimmed);
}

function fromJson(text) {
  let content;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw new Error(`this is not JSON: ${error.message}`);
  }
  let vector = content.vectors ?? content;
  if (Array.isArray(vector) && Array.isArray(vector[0])) {
    if (vector.length > 1) throw new Error(`these are ${vector.length} vectors: give one`);
    vector = vector[0];
  }
  if (!Array.isArray(vector)) throw new Error("a vector is a list of numbers, like [0.5, -1, 2]");
  return vector; // the sidecar says best what is wrong with its entries
}

function fromWords(text) {
  return text.split(/[\s,;]+/).filter(Boolean).map((word, i) => {
    const value = Number(word);
    if (Number.isNaN(value)) throw new Error(`number ${i + 1}, “${word}”, is not a number`);
    return value;
  });
}

/** `look()` gives what the page looks at now: {about, shape}; `shown(coordinates)` hears of each vector projected. */
export class Trial {
  #look;
  #shown;
  #last = null;

  constructor(look, shown) {
    this.#look = look;
    this.#shown = shown;
    element("try-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run(() => this.#project());
    });
    element("example").addEventListener("click", () => this.#run(() => this.#example()));
  }

  /** The version or the shape is another one: what was projected is projected again. */
  async again() {
    if (this.#last) await this.#run(() => this.#answer(this.#last));
  }

  async #run(act) {
    this.#say("");
    try {
      await act();
    } catch (error) {
      this.#say(error instanceof api.Gone ? "the sidecar does not answer" : error.message, true);
      element("try-answer").hidden = true;
      this.#last = null;
      this.#shown(null);
    }
  }

  #say(text, bad = false) {
    element("try-says").textContent = text;
    element("try-says").classList.toggle("bad", bad);
  }

  async #project() {
    await this.#answer(parse(element("vector").value));
  }

  /** The mean, one standard deviation along the first component. */
  async #example() {
    const { about } = this.#look();
    const coordinates = about.explained_variance.map((variance, i) => (i === 0 ? Math.sqrt(variance) : 0));
    const { vectors } = await api.fromCoordinates(coordinates, about.version);
    element("vector").value = rounded(vectors[0]).join(", ");
    this.#say("the mean, one standard deviation along component 1");
  }

  async #answer(vector) {
    const { about, shape } = this.#look();
    const [projected, rebuilt] = await Promise.all([
      api.project(vector, about.version), api.reconstruct(vector, about.version),
    ]);
    this.#last = vector;
    const [coordinates, residual] = [projected.coordinates[0], projected.residual[0]];
    const all = residual + coordinates.reduce((sum, value) => sum + value * value, 0);
    element("try-summary").textContent =
      `Residual ${short(residual)}: ${percent(all > 0 ? residual / all : 0)} of the vector's squared distance from the mean ` +
      `lies off the components' plane. By version ${count(projected.version)}.`;
    this.#strips(vector, rebuilt.vectors[0], shape);
    element("coordinates").replaceChildren(...coordinates.map((value, i) => line(i, value, about.explained_variance[i])));
    element("try-answer").hidden = false;
    this.#shown(coordinates);
  }

  #strips(vector, again, shape) {
    const scale = Math.max(largest(vector), largest(again));
    const rest = vector.map((value, i) => value - again[i]);
    fill(element("try-strips"), shape, [
      { vector, caption: "your vector", label: "Your vector", scale },
      { vector: again, caption: "reconstruction", label: "Its reconstruction from the components", scale },
      { vector: rest, caption: "what is missed", label: "What the reconstruction misses", scale },
    ]);
  }
}

function line(i, value, variance) {
  const deviations = variance > 0 ? value / Math.sqrt(variance) : 0;
  const said = make("span", {}, bar(deviations), ` ${signed(deviations)}`);
  return row(count(i + 1), short(value), said);
}

/** To the sixth digit of its largest entry: zeros look like zeros. */
function rounded(vector) {
  const digits = Math.max(0, Math.min(100, 5 - Math.floor(Math.log10(largest(vector) || 1))));
  return vector.map((value) => Number(value.toFixed(digits)) + 0);
}

/** Two decimals, and no minus before zero. */
const signed = (value) => (Number(value.toFixed(2)) + 0).toFixed(2);

function bar(deviations) {
  const length = (Math.min(Math.abs(deviations), DEVIATIONS) / DEVIATIONS) * 50;
  const svg = document.createElementNS(SVG, "svg");
  const set = (node, attributes) => Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
  set(svg, { viewBox: "0 0 100 10", width: 140, height: 14, "aria-hidden": "true" });
  const rect = document.createElementNS(SVG, "rect");
  set(rect, { x: deviations < 0 ? 50 - length : 50, y: 1, width: length, height: 8, fill: deviations < 0 ? "var(--minus)" : "var(--plus)" });
  const zero = document.createElementNS(SVG, "line");
  set(zero, { x1: 50, x2: 50, y1: 0, y2: 10, stroke: "var(--quiet)", "stroke-width": 0.8 });
  svg.append(rect, zero);
  return svg;
}
