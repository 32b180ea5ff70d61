// What happened besides learning, as marks in the charts over time and as a list.

import { element, make } from "./dom.js";
import { count, moment } from "./format.js";

const KINDS = { R: "worker started", S: "settings changed", P: "version pinned" };

/** Marks {at, kind, text} in the order of time; `pins` are versions by name. */
export function marksOf(points, pins, reports) {
  const started = reports.filter(({ transform }) => transform === null)
    .map(({ name, started_at: at }) => ({ at, kind: "R", text: `worker ${name} started` }));
  const pinned = Object.entries(pins).flatMap(([name, pin]) => points.filter(({ version }) => version === pin)
    .map(({ version, published_at: at }) => ({ at, kind: "P", text: `version ${count(version)}, pinned as ${name}` })));
  return [...started, ...changes(points), ...pinned].sort((a, b) => a.at - b.at);
}

/** Versions that were learned with other settings than the version before; null settings are the same ones. */
function changes(points) {
  const withSettings = points.filter(({ settings }) => settings !== null);
  return withSettings.slice(1).flatMap(({ version, published_at: at, settings }, i) => {
    const before = withSettings[i].settings;
    const changed = [...new Set(Object.keys({ ...before, ...settings }))].filter((name) => before[name] !== settings[name])
      .map((name) => `${name} ${before[name] ?? "unset"} → ${settings[name] ?? "unset"}`);
    return changed.length ? [{ at, kind: "S", text: `version ${count(version)}: ${changed.join(", ")}` }] : [];
  });
}

/** List the marks that the charts show. */
export function list(marks) {
  const [summary, items] = element("marks").children;
  element("marks").hidden = marks.length === 0;
  const counts = Object.entries(KINDS).map(([kind, text]) => [marks.filter((mark) => mark.kind === kind).length, `${kind} (${text})`]);
  summary.textContent = `Marks: ${counts.filter(([n]) => n).map(([n, text]) => `${n} × ${text}`).join(", ")}`;
  items.replaceChildren(...marks.map(({ at, kind, text }) => make("li", {}, `${kind} ${moment(at)}: ${text}`)));
}
