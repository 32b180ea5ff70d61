// The charts over time, and the range of time that all of them show.

import * as charts from "./charts.js";
import { colour, element, setText } from "./dom.js";
import { moment } from "./format.js";
import * as view from "./view.js";

const MAX_PARTITIONS = 12; // with lines of their own

let all = { points: [], selectedAt: null, now: 0 }; // what `show` got last
let partitions = []; // those with lines

const plots = {
  loss: timeline("loss-chart", losses, () => [["Loss", colour("accent")]]),
  explained: timeline("explained-chart", () => charts.SHARE, () => [["Explained", colour("good")]]),
  rate: timeline("rate-chart", () => charts.RATE, () => [["Messages", colour("second")]]),
  lag: timeline("lag-chart", () => charts.SPAN, () => [["Lag", colour("accent")]]),
  partitions: timeline("losses-chart", losses, () => partitions.map((p, i) => [`Partition ${p}`, charts.tone(i)])),
};

/** How losses are shown. */
function losses() {
  return element("log").checked ? charts.LOG_SHARE : charts.SHARE;
}

function timeline(id, unit, lines) {
  return charts.timeline(id, unit, lines, { selected: () => all.selectedAt, range: timeAxis, drag: showRange });
}

/** Draw the metrics of versions, in ascending order, and a mark at `selectedAt`, a time or null. */
export function show(points, selectedAt, now) {
  all = { points, selectedAt, now };
  draw();
}

function draw() {
  const [from, to] = range();
  const points = all.points
    .map((point, i) => ({ ...point, rate: rate(all.points[i - 1], point), lag: lag(point) }))
    .filter(({ published_at: at }) => at >= from && at <= to);
  const times = points.map((point) => point.published_at);
  plots.loss.show([times, points.map((point) => point.loss_ewma)]);
  plots.explained.show([times, points.map((point) => point.explained_variance_ratio)]);
  plots.rate.show([times, points.map((point) => point.rate)]);
  plots.lag.show([times, points.map((point) => point.lag)]);
  drawPartitions(times, points);
}

/** The loss of each partition or, if they are many, of those where it is the greatest now. */
function drawPartitions(times, points) {
  const newest = Object.entries(all.points.at(-1).partition_losses).sort(([, a], [, b]) => b - a);
  const shown = newest.slice(0, MAX_PARTITIONS).map(([p]) => p).sort((p, q) => p - q);
  element("losses").hidden = newest.length < 2;
  if (newest.length < 2) return;
  setText("losses-which", shown.length < newest.length ? `The ${shown.length} partitions where it is the greatest now.` : "");
  if (`${shown}` !== `${partitions}`) plots.partitions.rebuild();
  partitions = shown;
  plots.partitions.show([times, ...shown.map((p) => points.map(({ partition_losses: losses }) => losses[p] ?? null))]);
}

/** Messages per second between two versions. */
function rate(before, { version, published_at: at }) {
  return before && at > before.published_at ? (version - before.version) / (at - before.published_at) : null;
}

/** Seconds from the newest record in a version to its publication. */
const lag = ({ published_at: at, last_timestamp_ms: last }) => (last < 0 ? null : at - last / 1000);

// ---- the range of time

/** The range in the address: the length of one that ends now, or both ends, in seconds; [0]: all. */
const chosen = () => (view.get("range") ?? "").split("-").map((text) => Number(text) || 0);

/** The times of versions that are shown. */
function range() {
  const [first, last] = chosen();
  if (last > first) return [first, last];
  return [first ? all.now - first : -Infinity, Infinity];
}

/** The ends of the time axis for data from `least` to `most`; null without data. */
function timeAxis(_, least, most) {
  const [first, last] = chosen();
  if (last > first) return [first, last];
  return first ? [least ?? all.now - first, Math.max(all.now, all.points.at(-1).published_at)] : [least, most];
}

/** Show a range of time in all charts. */
function showRange(text) {
  view.set("range", text);
  markRange();
  draw();
}

function markRange() {
  const [first, last] = chosen();
  for (const button of buttons) button.setAttribute("aria-pressed", last > first ? false : Number(button.value) === first);
  setText("range-text", last > first ? `${moment(first)} to ${moment(last)}` : "Drag across a chart to look closer; double-click for all.");
}

const buttons = document.querySelectorAll("#range button");
for (const button of buttons) button.addEventListener("click", () => showRange(button.value));
markRange();

element("log").checked = view.get("log") !== null;
element("log").addEventListener("change", ({ target }) => {
  view.set("log", target.checked && "1");
  for (const plot of [plots.loss, plots.partitions]) plot.rebuild();
  draw();
});
