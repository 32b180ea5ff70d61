// The charts, drawn by uPlot (a global of page/uplot/uplot.js). They follow the width of their element and the colour scheme.

import { colour, element } from "./dom.js";
import { Figures, MAX_ROWS } from "./figures.js";
import * as view from "./view.js";
import { angle, compact, count, moment, moments, percent, percents, perSecond, spans, utc } from "./format.js";

const HEIGHT = 212; // of a plot, in pixels
const LEAST_SPAN = 0.1; // of an axis of shares, by the share or what it lacks of the whole
const SMALLEST_SPAN = 1e-4;

const scheme = matchMedia("(prefers-color-scheme: dark)");

export class Chart {
  #plot = null;
  #data = null;
  #key = null;

  /**
   * `described(data)` is the place of the values that the legend shows while no pointer is over the chart, −1 for none;
   * of data over time, `isOverTime`, the table begins with the newest.
   */
  constructor(id, options, described = null, isOverTime = false) {
    this.element = element(id);
    this.options = options;
    this.described = described;
    this.isOverTime = isOverTime;
    this.element.setAttribute("role", "img");
    this.title = this.element.closest("section").querySelector("h2").textContent;
    this.figures = new Figures(this.element.closest(".stack") ?? this.element, this.title);
    new ResizeObserver(() => this.#resize()).observe(this.element);
    scheme.addEventListener("change", () => this.#build());
  }

  /** Show data; with another key than before, drawn with other options. */
  show(data, key = null) {
    if (key !== this.#key) this.#destroy();
    [this.#data, this.#key] = [data, key];
    if (!this.#plot) this.#build();
    else {
      this.#plot.setData(data);
      this.#describe(this.#plot);
    }
    this.element.setAttribute("aria-label", this.label(data));
    this.figures.show(() => this.table(data), () => this.values(data));
  }

  #destroy() {
    this.#plot?.destroy();
    this.#plot = null;
  }

  /** For who cannot see the chart: its title and the values that its legend shows. */
  label(data) {
    const i = this.described(data);
    return `${this.title}: ${this.options().series.map(({ label, value }, j) => `${label} ${value(null, data[j][i] ?? null)}`).join(", ")}`;
  }

  table(data) {
    const { series } = this.options();
    const places = data[0].map((_, i) => i);
    if (this.isOverTime) places.reverse();
    return {
      columns: series.map(({ label }) => label),
      rows: places.slice(0, MAX_ROWS).map((i) => series.map(({ value }, j) => value(null, data[j][i]))),
    };
  }

  /** All values as they are, for programs. */
  values(data) {
    const { series } = this.options();
    return {
      columns: series.map(({ label, unit }) => (unit ? `${label} (${unit})` : label)),
      rows: data[0].map((_, i) => series.map(({ cell }, j) => (cell ? cell(data[j][i]) : data[j][i]))),
    };
  }

  #build() {
    this.#destroy();
    if (!this.#data || !this.element.clientWidth) return; // in a tab that is closed
    const options = { ...this.#size(), ...this.options() };
    options.hooks = { ...options.hooks, setLegend: [(plot) => this.#describe(plot)] };
    this.#plot = new uPlot(options, this.#data, this.element);
    this.#describe(this.#plot);
  }

  #resize() {
    if (!this.#plot) this.#build();
    else if (this.element.clientWidth) this.#plot.setSize(this.#size());
  }

  #describe(plot) {
    if (this.described === null || plot.cursor.left >= 0 || !plot.data[0].length) return;
    const place = this.described(plot.data);
    plot.setLegend({ idx: place < 0 ? null : place }, false);
  }

  #size() {
    return { width: this.element.clientWidth, height: Number(this.element.dataset.height ?? HEIGHT) };
  }
}

export const axis = (more = {}) => ({
  stroke: colour("quiet"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, ...more,
});
/** A vertical axis as wide as its labels, at least as others, so that charts below each other are aligned. */
export const valueAxis = (least, more = {}) => axis({
  size: (plot, labels, i) => {
    const { font, gap, ticks } = plot.axes[i];
    [plot.ctx.font] = font;
    const widths = (labels ?? []).map((label) => plot.ctx.measureText(label).width / devicePixelRatio);
    return Math.max(least, Math.ceil(Math.max(0, ...widths)) + gap + ticks.size);
  },
  ...more,
});
const ofPercent = (_, values, _axis, _space, step) => percents(values, step);

// What is shown: its unit and the text of a value, the scale or the least end of it, the labels of the axis and the steps between them.
export const SHARE = { text: percent, scale: { range: shares }, axis: { values: ofPercent } };
export const LOG_SHARE = {
  text: percent, scale: { distr: 3 }, axis: { values: (_, values) => values.map((share) => (share === null ? "" : percent(share))) },
};
export const RATE = { unit: "per second", text: perSecond, scale: { range: fromZero }, axis: { values: (_, values) => values.map(compact) } };
export const ANGLE = {
  unit: "°", least: 0.01, text: (degrees) => (degrees === null ? "–" : angle(degrees)),
  axis: { values: (_, values) => values.map((value) => `${value}°`) },
};
export const SPAN = {
  unit: "s",
  text: (seconds) => (seconds === null ? "–" : spans([seconds])[0]),
  scale: { range: fromZero },
  axis: {
    values: (_, values) => spans(values),
    incrs: [1e-3, 1e-2, 0.1, 1].flatMap((unit) => [1, 2, 5].map((n) => n * unit)).concat(
      [10, 20, 30, 60, 120, 300, 600, 1200, 1800], [1, 2, 3, 6, 12].map((hours) => 3600 * hours),
      [1, 10, 100, 1000, 10000].flatMap((unit) => [1, 2, 5].map((n) => 86400 * n * unit)),
    ),
  },
};

/**
 * Lines over the time of publishing, `lines()` being [label, colour] of each, with a line at the time that `selected()` returns,
 * whose values the legend shows, and at `marks()`, {at, kind} of each.
 */
export function timeline(id, unit, lines, selected, marks) {
  const upright = ({ ctx, bbox, scales: { x }, valToPos }, at, tone, width) => {
    if (at === null || at < x.min || at > x.max) return null;
    const left = Math.round(valToPos(at, "x", true));
    ctx.fillStyle = colour(tone);
    ctx.fillRect(left - (width * devicePixelRatio) / 2, bbox.top, width * devicePixelRatio, bbox.height);
    return left;
  };
  const drawMarks = (plot) => {
    upright(plot, selected(), "mark", 2);
    const letters = []; // one for each kind, where several marks are close
    for (const { at, kind } of marks()) {
      const left = upright(plot, at, "quiet", 1);
      if (left === null) continue;
      if (!(left - letters.at(-1)?.left < 12 * devicePixelRatio)) letters.push({ left, kinds: new Set() });
      letters.at(-1).kinds.add(kind);
    }
    const { ctx, bbox } = plot;
    ctx.save();
    Object.assign(ctx, { font: `${11 * devicePixelRatio}px system-ui, sans-serif`, textAlign: "center", textBaseline: "bottom" });
    for (const { left, kinds } of letters) ctx.fillText([...kinds].join(" "), left, bbox.top);
    ctx.restore();
  };
  const zoom = (plot) => {
    const { left, width } = plot.select;
    if (!width) return;
    plot.setSelect({ width: 0 }, false);
    view.set({ range: [left, left + width].map((x) => plot.posToVal(x, "x").toFixed(3)).join("-") });
  };
  return new Chart(id, () => ({
    cursor: {
      sync: { key: "time", filters: { pub: (event) => event === "mousemove" || event === "mouseleave" } },
      drag: { setScale: false, dist: 5 }, bind: { dblclick: () => () => view.set({ range: "all" }) },
    },
    hooks: { draw: [drawMarks], setSelect: [zoom] },
    axes: [axis({ values: (_, splits) => moments(splits), space: 80, size: 50 }), valueAxis(76, unit().axis)],
    scales: { y: unit().scale },
    series: [
      { label: "Published", value: (_, at) => (at === null ? "–" : moment(at)), cell: utc },
      ...lines().map(([label, tone]) => line(label, tone, { unit: unit().unit, value: (_, y) => unit().text(y) })),
    ],
  }), ([times]) => (selected() === null ? times.length - 1 : times.indexOf(selected())), true);
}

/** The colour of the i-th of many lines; neighbours differ most. */
export const tone = (i) => `hsl(${Math.round(215 + 137.5 * i) % 360} ${colour("lines")})`;

/** Bars, and lines above them, `lines()` being [label, colour, scale] of each; on the scale "sum" they go up to 1. */
export function bars(id, x, label, lines, unit = SHARE) {
  const value = (_, y) => unit.text(y);
  return new Chart(id, () => ({
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false, ...x.scale }, y: { range: (_, _least, most) => [0, Math.max(most * 1.08, unit.least ?? 0) || 1] }, sum: { range: [0, 1] } },
    axes: [
      axis({ grid: { show: false }, ...x.axis }), valueAxis(64, unit.axis),
      ...(lines()[0][2] === "sum" ? [valueAxis(56, { scale: "sum", side: 1, grid: { show: false }, ...unit.axis })] : []),
    ],
    series: [
      { label: x.label, value: (_, at) => (at === null ? "–" : x.text(at)), cell: x.cell },
      {
        label, unit: unit.unit, stroke: colour("accent"), fill: colour("accent"), paths: uPlot.paths.bars({ size: [0.7, 48] }),
        points: { show: false }, value,
      },
      ...lines().map(([label, tone, scale]) => line(label, colour(tone), { scale, unit: unit.unit, value })),
    ],
  }), () => 0);
}

const line = (label, tone, more) => ({
  label, stroke: tone, width: 2, points: { size: 5, fill: tone }, ...more, // drawn unless they are too close
});

// The columns of bars: components, or tenths from 0 to 1.
export const COMPONENTS = {
  label: "Component", text: count, scale: { range: (_, least, most) => [least - 0.6, most + 0.6] },
  axis: { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], space: 25 },
};
const tenth = (p) => `${(p - 0.05).toFixed(1)} to ${(p + 0.05).toFixed(1)}`;
export const TENTHS = {
  label: "p", text: tenth, cell: tenth, scale: { range: () => [0, 1] },
  axis: { incrs: [0.1, 0.2, 0.5], space: 30 },
};

/** From 0 to somewhat more than the greatest value. */
function fromZero(_, least, most) {
  return least === null ? [0, 1] : [Math.min(0, 1.1 * least), Math.max(0, 1.1 * most) || 1];
}

/** The range of shares: some margin, but not beyond 0 and 1 for its sake; and not so narrow that a tiny change is a cliff. */
export function shares(_, least, most) {
  if (least === null) return [0, 1];
  const span = Math.max(most - least, SMALLEST_SPAN, LEAST_SPAN * Math.min(most, Math.abs(1 - least)));
  const [middle, half] = [(least + most) / 2, 0.6 * span];
  return [Math.max(0, middle - half), most <= 1 ? Math.min(1, middle + half) : middle + half];
}
