// The charts, drawn by uPlot (a global of page/uplot/uplot.js). They follow the width of their element and the colour scheme.

import { colour, element } from "./dom.js";
import { count, moments, percent, percents, short, time } from "./format.js";

const MAX_MARKERS = 60; // longer lines are drawn without a marker for each point

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
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(this.element);
    scheme.addEventListener("change", () => this.#build());
  }

  show(data) {
    this.#data = data;
    if (this.#plot) this.#plot.setData(data);
    else this.#build();
    this.#describe(this.#plot);
  }

  redraw() {
    this.#plot?.redraw();
  }

  #build() {
    this.#plot?.destroy();
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
    const legend = narrow.matches ? 48 : 28; // one line or two below the plot, see style.css
    return { width: this.element.clientWidth, height: this.element.clientHeight - legend };
  }
}

const axis = (more = {}) => ({
  stroke: colour("quiet"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, ...more,
});
const ofPercent = (_, values, _axis, _space, step) => percents(values, step);

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
      axis({ values: (_, splits) => moments(splits), space: 80, size: 50 }),
      axis({ values: ofPercent, size: 76 }),
    ],
    scales: { y: { range: shares } },
    series: [
      { label: "Published", value: (_, at) => (at === null ? "–" : time(at)) },
      {
        label, stroke: colour(tone), width: 2, value: (_, share) => percent(share),
        points: { show: (plot) => plot.data[0].length <= MAX_MARKERS, size: 5, fill: colour(tone) },
      },
    ],
  }), -1);
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

/** The range of shares: some margin, but not below 0, nor above 1 for the sake of the margin. */
function shares(_, least, most) {
  if (least === null) return [0, 1];
  const span = most - least > 1e-6 * most ? most - least : 0; // less is rounding
  const margin = 0.1 * span || 0.05 * most || 0.05;
  return [Math.max(0, least - margin), most <= 1 ? Math.min(1, most + margin) : most + margin];
}
