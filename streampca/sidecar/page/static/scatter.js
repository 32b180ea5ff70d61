// Recent vectors in the plane of two components, coloured by age or p; the nearest to the pointer is described beside it.

import { axis, Chart, valueAxis } from "./charts.js";
import { colour, make } from "./dom.js";
import { count, short, time, utc } from "./format.js";

const NEAR = 24; // pixels from the pointer to the point that it shows

// A point is of the first class whose bound it exceeds; classes are drawn in this order, the last above the others and largest.
const CLASSES = {
  age: [[600, "older"], [60, "up to 10 min"], [10, "up to 1 min"], [-Infinity, "up to 10 s"]],
  p: [[0.1, "p above 0.1"], [0.01, "p up to 0.1"], [0.001, "p up to 0.01"], [-Infinity, "p up to 0.001"]],
};
const SIZES = [4, 5.5, 7, 9, 12];
const YOURS = 4; // its class

export class Scatter extends Chart {
  #points = [];
  #axes = [1, 2];
  #by = "age";
  #tip = make("div", { class: "tip", hidden: "" });

  constructor(id) {
    const series = (label, kind) => {
      const [fill, stroke] = [colour(`class-${kind}`), colour(kind === YOURS ? "ink" : `class-${kind}`)];
      return { label, stroke, fill, paths: () => null, points: { show: true, size: SIZES[kind], fill, stroke } };
    };
    super(id, () => ({
      cursor: { drag: { x: false, y: false }, x: false, y: false, dataIdx: (plot, j) => this.#nearest(plot, j) },
      legend: { live: false },
      hooks: { init: [(plot) => plot.over.append(this.#tip)], setCursor: [(plot) => this.#point(plot)] },
      scales: { x: { time: false, range: padded }, y: { range: padded } },
      axes: [axis(), valueAxis(64)],
      series: [{}, ...CLASSES[this.#by].map(([, label], kind) => series(label, kind)), series("yours", YOURS)],
    }));
  }

  /** `points` are {index, at, a, b, residual, p} in the order of time, a and b along the components `axes`; yours has only these. */
  showPoints(points, axes, by, now) {
    const kind = ({ at, p }) => CLASSES[by].findIndex(([bound]) => (by === "p" ? p : now - at) > bound);
    this.#points = points.map((point) => ({ ...point, kind: point.index ? kind(point) : YOURS })).sort((p, q) => p.a - q.a);
    this.#axes = axes;
    this.#by = by;
    this.show([this.#points.map(({ a }) => a), ...SIZES.map((_, i) => this.#points.map((point) => (point.kind === i ? point.b : null)))], by);
  }

  label() {
    const newest = this.#newestFirst()[0];
    return `${this.title}: ${count(this.#points.length)} points${newest ? `; newest: ${this.#described(newest).join(", ")}` : ""}`;
  }

  table() {
    const { columns, rows } = this.#list((at) => at);
    return { columns, rows: rows.map(([index, at, ...numbers]) => [count(index), time(at), ...numbers.map(orDash)]) };
  }

  values() {
    return this.#list(utc);
  }

  #list(timeOf) {
    const [x, y] = this.#axes;
    return {
      columns: ["Vector", "Projected", `Component ${x}`, `Component ${y}`, "Residual", "p"],
      rows: this.#newestFirst().map(({ index, at, a, b, residual, p }) => [index, timeOf(at), a, b, residual, p]),
    };
  }

  #newestFirst() {
    return this.#points.filter(({ index }) => index).sort((p, q) => q.index - p.index);
  }

  #described({ index, at, a, b, residual, p }) {
    const [x, y] = this.#axes;
    return [
      index ? `vector ${count(index)}, projected ${time(at)}` : "your vector",
      `component ${x}: ${short(a)}, component ${y}: ${short(b)}`,
      ...(index ? [`residual ${short(residual)}, p ${orDash(p)}`] : []),
    ];
  }

  /** The index of the nearest point if it is of series j and near, as uPlot asks. */
  #nearest(plot, j = null) {
    const { left, top } = plot.cursor;
    let [nearest, least] = [null, NEAR ** 2];
    if (left >= 0) this.#points.forEach(({ a, b }, i) => {
      const distance = (plot.valToPos(a, "x") - left) ** 2 + (plot.valToPos(b, "y") - top) ** 2;
      if (distance < least) [nearest, least] = [i, distance];
    });
    return !j || this.#points[nearest]?.kind === j - 1 ? nearest : null;
  }

  #point(plot) {
    const i = this.#nearest(plot);
    this.#tip.hidden = i === null;
    if (i === null) return;
    const { a, b } = this.#points[i];
    const [left, top] = [plot.valToPos(a, "x"), plot.valToPos(b, "y")];
    this.#tip.replaceChildren(...this.#described(this.#points[i]).map((text) => make("div", {}, text)));
    this.#tip.style.left = `${Math.max(0, Math.min(left, plot.over.clientWidth - this.#tip.offsetWidth))}px`;
    this.#tip.style.top = `${top > plot.over.clientHeight / 2 ? top - this.#tip.offsetHeight - 10 : top + 10}px`;
  }
}

const orDash = (value) => (value === null ? "–" : short(value));

function padded(_, least, most) {
  if (least === null) return [-1, 1];
  const size = Math.max(Math.abs(least), Math.abs(most));
  // Values that are equal to rounding count as equal: their distance is too small to divide the axis by.
  const span = most - least > 1e-9 * size ? most - least : 0;
  const margin = 0.06 * span || size || 1;
  return [least - margin, most + margin];
}
