// Two versions side by side: the selected one, and that of a second slider, at first the oldest.

import { angleBetween, principalAngles } from "./angles.js";
import * as api from "./api.js";
import * as charts from "./charts.js";
import { colour, element, setText } from "./dom.js";
import { angle, count, degrees, percent } from "./format.js";
import { fill } from "./heatmap.js";
import * as view from "./view.js";
import * as versionSlider from "./version_slider.js";

const MAX_COMPONENTS = 100; // of each version: the work grows with their square

const plots = {
  both: charts.bars("both-chart", { x: charts.COMPONENTS, bar: "selected", line: "compared" }),
  angles: charts.bars("angles-chart", { x: charts.COMPONENTS, bar: "components", line: "principal angle", unit: charts.ANGLE }),
};
let other = null; // {about, components}
let requested = null; // the version requested last: answers for others are dropped
let drawn = ""; // what the charts and pictures show

/** Compare {about, components} with the version that the address names, if it is in the store; `shape` is that of pictures. */
export async function show(shown, versions, shape) {
  const version = versions.find((one) => one === Number(view.get("with"))) ?? versions[0] ?? shown.about.version;
  requested = version;
  const model = other?.about.version === version ? other : await api.model(version);
  if (requested !== version) return;
  other = model;
  versionSlider.show("other", other.about, versions);
  const content = JSON.stringify([shown.about.version, version, shape, colour("plus")]);
  if (content === drawn) return;
  drawn = content;
  draw(shown, other, shape);
}

function draw(one, two, shape) {
  const shares = [one, two].map(({ about }) => about.explained_variance_ratio);
  const [sum, otherSum] = shares.map((all) => percent(all.reduce((total, share) => total + share, 0)));
  setText("both-sums", `In all ${sum}; ${otherSum} in version ${count(two.about.version)}.`);
  plots.both.show(numbered(...shares));
  const [components, others] = [one, two].map((model) => model.components.slice(0, MAX_COMPONENTS));
  const between = components.slice(0, others.length).map((vector, i) => degrees(angleBetween(vector, others[i])));
  plots.angles.show(numbered(between, principalAngles(components, others).map(degrees)));
  fill(element("pairs"), shape, between.flatMap((size, i) => [
    { vector: components[i], caption: `${i + 1} · selected`, label: `Component ${i + 1} of the selected version` },
    { vector: others[i], caption: `${i + 1} · compared, ${angle(size)}`, label: `Component ${i + 1} of the version compared` },
  ]));
}

/** Data of bars and a line, of which one may be shorter. */
function numbered(one, two) {
  const longer = one.length < two.length ? two : one;
  return [longer.map((_, i) => i + 1), ...[one, two].map((values) => longer.map((_, i) => values[i] ?? null))];
}
