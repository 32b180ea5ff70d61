// The charts, drawn by uPlot (a global of page/uplot/uplot.js). They follow the width of their element and the colour scheme.

import { colour, element, make } from "./dom.js";
import { Figures, MAX_ROWS } from "./figures.js";
import { compact, count, moment, moments, percent, percents, perSecond, short, spans, time } from "./format.js";

const MAX_MARKERS = 60; // longer lines are drawn without a marker for each point
const NEAR = 24; // pixels from the pointer to the point that it shows

const scheme = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 480px)");

class Chart {
  #plot = null;
  #data = null;

  /** `described` is the place of the values that the legend shows while no pointer is over the chart: 0, or −1, the last. */
  constructor(id, options, described = null) {
    this.element = element(id);
    this.options = options;
    this.described = described;
    this.title = this.element.closest("section").querySelector("h2").textContent;
    this.figures = new Figures(this.element.closest(".stack") ?? this.element, this.title);
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(this.element);
    scheme.addEventListener("change", () => this.#build());
  }

  show(data) {
    this.#data = data;
    if (this.#plot) this.#plot.setData(data);
    else this.#build();
    this.#describe(this.#plot);
    this.element.setAttribute("aria-label", this.label(data));
    this.figures.show(() => this.table(data));
  }

  /** Draw other series with the next data. */
  rebuild() {
    this.#plot?.destroy();
    this.#plot = null;
  }

  /** For who cannot see the chart: its title and the values that its legend shows. */
  label(data) {
    const i = this.described < 0 ? data[0].length - 1 : 0;
    return `${this.title}: ${this.options().series.map(({ label, value }, j) => `${label} ${value(null, data[j][i] ?? null)}`).join(", ")}`;
  }

  table(data) {
    const { series } = this.options();
    const places = data[0].map((_, i) => i);
    if (this.described < 0) places.reverse();
    return {
      columns: series.map(({ label }) => label),
      rows: places.slice(0, MAX_ROWS).map((i) => series.map(({ value }, j) => value(null, data[j][i]))),
    };
  }

  #build() {
    this.rebuild();
    if (!this.#data) return;
    const options = { ...this.#size(), ...this.options() };
    options.hooks = { ...options.hooks, setLegend: [(plot) => this.#describe(plot)] };
    this.#plot = new uPlot(options, this.#data, this.element);
    this.#describe(this.#plot);
  }

  #describe(plot) {
    if (this.described === null || plot.legend.idx != null || !plot.data[0].length) return;
    plot.setLegend({ idx: this.described < 0 ? plot.data[0].length - 1 : this.described });
  }

  #size() {
    const width = this.element.clientWidth;
    if (this.element.classList.contains("many")) return { width, height: 220 }; // and a legend of any height below
    const legend = narrow.matches ? 48 : 28; // one line or two below the plot, see style.css
    return { width, height: this.element.clientHeight - legend };
  }
}

const axis = (more = {}) => ({
  stroke: colour("quiet"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, ...more,
});
const ofPercent = (_, values, _axis, _space, step) => percents(values, step);

// What a timeline shows: the text of a value, the range of the axis, its labels, and the steps between them.
export const SHARE = { text: percent, range: shares, axis: { values: ofPercent } };
export const RATE = { text: perSecond, range: fromZero, axis: { values: (_, values) => values.map(compact) } };
export const SPAN = {
  text: (seconds) => (seconds === null ? "–" : spans([seconds])[0]),
  range: fromZero,
  axis: {
    values: (_, values) => spans(values),
    incrs: [1e-3, 1e-2, 0.1, 1].flatMap((unit) => [1, 2, 5].map((n) => n * unit)).concat(
      [10, 20, 30, 60, 120, 300, 600, 1200, 1800], [1, 2, 3, 6, 12].map((hours) => 3600 * hours),
      [1, 10, 100, 1000, 10000].flatMap((unit) => [1, 2, 5].map((n) => 86400 * n * unit)),
    ),
  },
};

/** Lines over the time of publishing, `lines()` being [label, colour] of each, with a mark at the selected version. */
export function timeline(id, unit, lines, selected) {
  const mark = (plot) => {
    const at = selected();
    if (at === null) return;
    const x = Math.round(plot.valToPos(at, "x", true));
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("mark");
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  };
  return new Chart(id, () => ({
    cursor: { sync: { key: "time" }, drag: { x: false, y: false } },
    hooks: { draw: [mark] },
    axes: [axis({ values: (_, splits) => moments(splits), space: 80, size: 50 }), axis({ size: 76, ...unit.axis })],
    scales: { y: { range: unit.range } },
    series: [
      { label: "Published", value: (_, at) => (at === null ? "–" : moment(at)) },
      ...lines().map(([label, tone]) => ({
        label, stroke: tone, width: 2, value: (_, y) => unit.text(y),
        points: { show: (plot) => plot.data[0].length <= MAX_MARKERS, size: 5, fill: tone },
      })),
    ],
  }), -1);
}

/** The colour of the i-th of many lines; neighbours differ most. */
export const tone = (i) => `hsl(${Math.round(215 + 137.5 * i) % 360} ${colour("lines")})`;

/** Bars of each component's share, and a line of the cumulative share. */
export function scree(id) {
  const line = uPlot.paths.linear();
  return new Chart(id, () => ({
    cursor: { drag: { x: false, y: false } },
    scales: {
      x: { time: false, range: (_, least, most) => [least - 0.6, most + 0.6] },
      y: { range: (_, _least, most) => [0, most * 1.08 || 1] },
      sum: { range: [0, 1] },
    },
    axes: [
      axis({ grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }),
      axis({ values: ofPercent, size: 64 }),
      axis({ scale: "sum", side: 1, values: ofPercent, size: 56, grid: { show: false } }),
    ],
    series: [
      { label: "Component", value: (_, i) => (i === null ? "–" : count(i)) },
      {
        label: "share", stroke: colour("accent"), fill: colour("accent"), paths: uPlot.paths.bars({ size: [0.7, 48] }),
        points: { show: false }, value: (_, share) => percent(share),
      },
      {
        label: "cumulative", scale: "sum", stroke: colour("second"), width: 2, paths: line, value: (_, share) => percent(share),
        points: { show: (plot) => plot.data[0].length <= MAX_MARKERS, size: 5, fill: colour("second") },
      },
    ],
  }), 0);
}

/** Bars of the share of values in each tenth from 0 to 1, and a line at a tenth. */
export function tenths(id) {
  return new Chart(id, () => ({
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false, range: () => [0, 1] }, y: { range: (_, _least, most) => [0, most * 1.08] } },
    axes: [axis({ grid: { show: false }, incrs: [0.1, 0.2, 0.5], space: 30 }), axis({ values: ofPercent, size: 64 })],
    series: [
      { label: "p", value: (_, p) => (p === null ? "–" : `${(p - 0.05).toFixed(1)} to ${(p + 0.05).toFixed(1)}`) },
      {
        label: "share", stroke: colour("accent"), fill: colour("accent"), paths: uPlot.paths.bars({ size: [0.8] }),
        points: { show: false }, value: (_, share) => percent(share),
      },
      { label: "a tenth", stroke: colour("second"), width: 2, points: { show: false }, value: (_, share) => percent(share) },
    ],
  }), 0);
}

const KINDS = ["earlier", "latest", "yours"];

/** Points in the plane of two components; the nearest to the pointer is described beside it. */
export class Scatter extends Chart {
  #points = [];
  #axes = [1, 2];
  #tip = make("div", { class: "tip", hidden: "" });

  constructor(id) {
    const kind = (label, tone, size) => ({
      label, stroke: colour(tone), paths: () => null, points: { show: true, size, fill: colour(tone), stroke: colour(tone) },
      value: (_, y) => (y === null ? "–" : short(y)),
    });
    super(id, () => ({
      cursor: { drag: { x: false, y: false }, x: false, y: false, dataIdx: (plot, j) => this.#nearest(plot, j) },
      hooks: { init: [(plot) => plot.over.append(this.#tip)], setCursor: [(plot) => this.#point(plot)] },
      scales: { x: { time: false, range: padded }, y: { range: padded } },
      axes: [axis(), axis({ size: 64 })],
      series: [
        { label: "Horizontal", value: (_, x) => (x === null ? "–" : short(x)) },
        kind("earlier", "quiet", 4), kind("latest", "accent", 6), kind("yours", "second", 12),
      ],
    }));
  }

  /** `points` are {index, at, a, b, residual, p, kind}, in the order of time; a and b along the components `axes`. */
  showPoints(points, axes) {
    this.#points = [...points].sort((p, q) => p.a - q.a);
    this.#axes = axes;
    const ofKind = (kind) => this.#points.map((point) => (point.kind === kind ? point.b : null));
    this.show([this.#points.map(({ a }) => a), ...KINDS.map((_, kind) => ofKind(kind))]);
  }

  label() {
    const newest = this.#newestFirst()[0];
    return `${this.title}: ${count(this.#points.length)} points${newest ? `; newest: ${this.#described(newest).join(", ")}` : ""}`;
  }

  table() {
    const [x, y] = this.#axes;
    return {
      columns: ["Vector", "Projected", `Component ${x}`, `Component ${y}`, "Residual", "p"],
      rows: this.#newestFirst().map((point) => [
        count(point.index), time(point.at), short(point.a), short(point.b), short(point.residual), orDash(point.p),
      ]),
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
    let [found, least] = [null, NEAR ** 2];
    if (left >= 0) this.#points.forEach(({ a, b }, i) => {
      const distance = (plot.valToPos(a, "x") - left) ** 2 + (plot.valToPos(b, "y") - top) ** 2;
      if (distance < least) [found, least] = [i, distance];
    });
    return !j || this.#points[found]?.kind === j - 1 ? found : null;
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
  const margin = 0.06 * (most - least) || Math.abs(most) || 1;
  return [least - margin, most + margin];
}

/** From 0 to somewhat more than the greatest value. */
function fromZero(_, least, most) {
  return least === null ? [0, 1] : [Math.min(0, 1.1 * least), Math.max(0, 1.1 * most) || 1];
}

/** The range of shares: some margin, but not below 0, nor above 1 for the sake of the margin. */
function shares(_, least, most) {
  if (least === null) return [0, 1];
  const span = most - least > 1e-6 * most ? most - least : 0; // less is rounding
  const margin = 0.1 * span || 0.05 * most || 0.05;
  return [Math.max(0, least - margin), most <= 1 ? Math.min(1, most + margin) : most + margin];
}
