// How unusual the recent vectors are: the distribution of their p-values, and the most unusual ones.

import * as charts from "./charts.js";
import { element, make, row } from "./dom.js";
import { dimension, short, signed, time } from "./format.js";

const TENTHS = 10;

const chart = charts.bars("p-chart", charts.TENTHS, "share", () => [["a tenth", "second", "y"]]);

/** Show what `v1/page/recent` says of p; nothing without past scores or vectors. */
export function show({ p, worst }) {
  element("unusual").hidden = p === null || p.length === 0;
  if (element("unusual").hidden) return;
  const counts = Array(TENTHS).fill(0);
  for (const each of p) counts[Math.min(Math.floor(TENTHS * each), TENTHS - 1)] += 1 / p.length;
  chart.show([counts.map((_, i) => (i + 0.5) / TENTHS), counts, counts.map(() => 1 / TENTHS)]);
  const hasLabels = worst.some(({ label }) => label);
  element("label-column").hidden = !hasLabels;
  element("worst").replaceChildren(...worst.map((each) => row(
    time(each.at), short(each.p), scoreOf(each), ...(hasLabels ? [make("span", { class: "label" }, each.label || "–")] : []), deviations(each))));
}

const scoreOf = ({ score }) => (score === null ? "–" : short(score));

/** Such as "vibration (+83 %), 7 (−2 %)"; lines break between the dimensions. */
function deviations({ dimensions, shares }) {
  const sized = (value) => (value === null ? "" : ` (${signed(value, (size) => `${Number((100 * size).toPrecision(2))} %`)})`);
  const comma = (i) => (i + 1 < dimensions.length ? ", " : "");
  return make("span", {}, ...dimensions.map((name, i) => make("span", { class: "whole" }, dimension(name), sized(shares[i]), comma(i))));
}
