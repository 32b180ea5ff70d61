// The charts over time, and the range of time that all of them show.

import * as charts from "./charts.js";
import { colour, element, setText } from "./dom.js";
import { moment } from "./format.js";
import { list } from "./marks.js";
import * as view from "./view.js";

const MAX_PARTITIONS = 12; // with lines of their own
const AT_FIRST = "900"; // seconds

let selectedAt = null;
let marks = []; // {at, kind, text} of each
let partitions = []; // those with lines

const losses = () => (element("log").checked ? charts.LOG_SHARE : charts.SHARE);
const timeline = (id, unit, lines) => charts.timeline(id, unit, lines, () => selectedAt, () => marks);

const plots = [
  ["loss", losses, "Loss", "accent", (point) => point.loss_ewma],
  ["explained", () => charts.SHARE, "Explained", "good", (point) => point.explained_variance_ratio],
  ["rate", () => charts.RATE, "Messages", "second", rate],
  ["lag", () => charts.SPAN, "Lag", "accent", lag],
].map(([id, unit, label, tone, value]) => ({ value, plot: timeline(`${id}-chart`, unit, () => [[label, colour(tone)]]) }));
const ofPartitions = timeline("losses-chart", losses, () => partitions.map((p, i) => [`Partition ${p}`, charts.tone(i)]));

/** Draw the metrics of versions, in ascending order, the time of the version shown, and other marks. */
export function show(all, at, allMarks, now) {
  selectedAt = at;
  const [from, to] = range(now, at, all.at(-1).published_at);
  const shown = all.map((point, i) => [point, all[i - 1]]).filter(([{ published_at: time }]) => time >= from && time <= to);
  const times = shown.map(([point]) => point.published_at);
  marks = allMarks.filter((mark) => mark.at >= times[0] && mark.at <= times.at(-1));
  list(marks);
  const log = element("log").checked;
  for (const { plot, value } of plots) plot.show([times, shown.map((pair) => value(...pair))], log);

  const newest = Object.entries(all.at(-1).partition_losses).sort(([, a], [, b]) => b - a);
  partitions = newest.slice(0, MAX_PARTITIONS).map(([p]) => p).sort((p, q) => p - q);
  element("losses").hidden = newest.length < 2;
  setText("losses-which", partitions.length < newest.length ? `The ${partitions.length} partitions where it is the greatest now.` : "");
  ofPartitions.show([times, ...partitions.map((p) => shown.map(([point]) => point.partition_losses[p] ?? null))], `${log} ${partitions}`);
}

/**
 * The ends of the range in the address: of a dragged one both; else its length up to now, in seconds, or around the version shown
 * if that is older.
 */
function range(now, at, newest) {
  const [first, last] = (view.get("range") ?? AT_FIRST).split("-").map(Number);
  if (last > first) return described([first, last]);
  const length = first || Infinity; // all
  if (now - at > length) {
    const end = Math.min(newest, at + length / 2);
    return described([end - length, end], "Around the version shown: ");
  }
  setText("range-text", "Drag across a chart to look closer; double-click for all.");
  return [now - length, Infinity];
}

function described(ends, before = "") {
  setText("range-text", before + ends.map(moment).join(" to "));
  return ends;
}

/** Messages per second between two versions. */
function rate({ version, published_at: at }, before) {
  return before && at > before.published_at ? (version - before.version) / (at - before.published_at) : null;
}

/** Seconds from the newest record in a version to its publication. */
function lag({ published_at: at, last_timestamp_ms: last }) {
  return last < 0 ? null : at - last / 1000;
}
