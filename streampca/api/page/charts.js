// The charts, drawn by uPlot (a global of page/uplot/uplot.js). They follow the width of their element and the colour scheme.

import { colour, element } from "./dom.js";
import { count, percent, short, time } from "./format.js";

const MAX_MARKERS = 60; // longer lines are drawn without a marker for each point

const scheme = matchMedia("(prefers-color-scheme: dark)");

class Chart {
  #plot = null;
  #data = null;

  constructor(id, options) {
    this.element = element(id);
    this.options = options;
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(this.element);
    scheme.addEventListener("change", () => this.#build());
  }

  show(data) {
    this.#data = data;
    if (this.#plot) this.#plot.setData(data);
    else this.#build();
  }

  redraw() {
    this.#plot?.redraw();
  }

  #build() {
    this.#plot?.destroy();
    this.#plot = this.#data && new uPlot({ ...this.#size(), ...this.options() }, this.#data, this.element);
  }

  #size() {
    return { width: this.element.clientWidth, height: this.element.clientHeight - 28 }; // the legend's line is below
  }
}

const axis = (more = {}) => ({
  stroke: colour("quiet"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, ...more,
});
const ofPercent = (_, values) => values.map((value) => percent(value));

/** A share over the time of publishing, with a line at the selected version. */
export function timeline(id, label, tone, selected) {
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
    axes: [
      axis({ values: (_, splits) => splits.map(time), space: 80 }),
      axis({ values: ofPercent, size: 64 }),
    ],
    series: [
      { label: "Published", value: (_, at) => (at === null ? "–" : time(at)) },
      {
        label, stroke: colour(tone), width: 2, value: (_, share) => percent(share),
        points: { show: (plot) => plot.data[0].length <= MAX_MARKERS, size: 5, fill: colour(tone) },
      },
    ],
  }));
}

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
  }));
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
  }));
}

/** Points in the plane of two components: [x, earlier, latest, own], x ascending; null where a point is of another kind. */
export function scatter(id) {
  const kind = (label, tone, size) => ({
    label, stroke: colour(tone), paths: () => null, points: { show: true, size, fill: colour(tone), stroke: colour(tone) },
    value: (_, y) => (y === null ? "–" : short(y)),
  });
  return new Chart(id, () => ({
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false, range: padded }, y: { range: padded } },
    axes: [axis(), axis({ size: 64 })],
    series: [
      { label: "Horizontal", value: (_, x) => (x === null ? "–" : short(x)) },
      kind("earlier", "quiet", 4), kind("latest", "accent", 6), kind("yours", "second", 12),
    ],
  }));
}

function padded(_, least, most) {
  if (least === null) return [-1, 1];
  const margin = 0.06 * (most - least) || Math.abs(most) || 1;
  return [least - margin, most + margin];
}
