// Whether the pinned models still fit the stream, as the sidecar decides.

import { element, make } from "./dom.js";
import { count } from "./format.js";

const CAUSES = { axes: "the axes have turned", mean: "the mean has moved" };

/** Show a line for each pinned model of `drifts`, by its name. */
export function show(drifts) {
  const lines = Object.entries(drifts).map(([name, { version, outdated }]) => {
    const verdict = outdated.length ? `Outdated: ${outdated.map((cause) => CAUSES[cause]).join(" and ")}` : "The model fits the stream";
    return { isGood: outdated.length === 0, verdict, pin: ` (pinned as ${name}, version ${count(version)})` };
  });
  const list = element("verdict");
  const text = lines.map(({ verdict, pin }) => verdict + pin).join("");
  list.hidden = lines.length === 0;
  if (list.textContent === text) return; // screen readers announce changes alone
  list.replaceChildren(...lines.map(({ isGood, verdict, pin }) => make("li", {},
    make("strong", { class: isGood ? "good" : "bad" }, verdict), make("span", { class: "quiet" }, pin))));
}
