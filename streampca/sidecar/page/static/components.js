// The components of the selected version and, beside them, those of the version that it is compared with.

import * as charts from "./charts.js";
import { element, make, setText } from "./dom.js";
import { angle, count, degrees, percent, short, sum } from "./format.js";
import { fill, shapeOf } from "./heatmap.js";

const NO_ANGLES = { between: [], principal: [] }; // in radians

let compared = ""; // the legend of the version that is compared

const scree = charts.bars("scree-chart", charts.COMPONENTS, "share", () => [
  ["cumulative", "second", "sum"], ...(compared ? [[compared, "ink", "y"]] : []),
]);
const angles = charts.bars("angles-chart", charts.COMPONENTS, "components", () => [["subspaces", "second", "y"]], charts.ANGLE);

/** Show a version, {about, components}, beside another one, {about, components, angles}, or null; `shape` is that of pictures. */
export function show({ about, components }, other, shape) {
  drawScree(about.explained_variance_ratio, other?.about);
  showErrors(about);
  showDrift(about);
  const { between, principal } = other?.angles ?? NO_ANGLES;
  const others = other?.components.slice(0, between.length) ?? [];
  element("angles").hidden = others.length === 0;
  if (others.length) angles.show([between.map((_, i) => i + 1), between.map(degrees), principal.map(degrees)]);
  if (components.length) fill(element("components"), shape, about.names, components.flatMap((vector, i) => [
    { vector, caption: captionOf(i, about), label: `Component ${i + 1}` },
    ...(others[i] ? [{ vector: others[i], order: vector, caption: `${i + 1} · compared, ${angle(degrees(between[i]))}`, label: `Component ${i + 1} of ${compared}` }] : []),
  ]));
}

function drawScree(shares, other) {
  let total = 0;
  compared = other ? `version ${count(other.version)}` : "";
  setText("compared", other ? `In ${compared}, all explain ${percent(sum(other.explained_variance_ratio))}.` : "");
  const lines = [shares.map((share) => (total += share)), ...(other ? [other.explained_variance_ratio] : [])];
  scree.show([shares.map((_, i) => i + 1), shares, ...lines], compared);
}

const errorOf = (radians) => angle(degrees(radians));

function captionOf(i, { explained_variance_ratio: shares, axis_errors: errors }) {
  return `${i + 1} · ${percent(shares[i])}${errors === null ? "" : ` · ±\u00a0${errorOf(errors[i])}`}`;
}

/** Both errors are null with fewer than four partitions. */
function showErrors({ subspace_error: subspace, axis_errors: axes, components }) {
  element("errors").hidden = subspace === null;
  if (subspace === null) return;
  setText("errors", `Sampling error, estimated: ${short(subspace)} of ${components} for the plane of all ` +
    `components; ${errorOf(Math.min(...axes))} to ${errorOf(Math.max(...axes))} for the axes.`);
}

/** How far the newest version has moved from each pinned one. */
function showDrift({ drift }) {
  element("drift").replaceChildren(...Object.entries(drift).map(([name, { version, ...moved }]) => make("li", {},
    `Turned by up to ${angle(degrees(moved.angle_radians))} since ${name}, version ${count(version)}, whose axes explain ` +
    `${percent(moved.explained_variance_ratio)} of today's variance; squared shift of the mean, by its total variance: ` +
    `${moved.mean_shift_ratio === null ? "–" : percent(moved.mean_shift_ratio)}.`)));
}

/** The shape that the user entered, for vectors of length d; null if there is none or it does not fit. */
export function shape(d) {
  setText("shape-message", "");
  try {
    return shapeOf(element("shape").value, d);
  } catch (error) {
    setText("shape-message", error.message);
    return null;
  }
}
