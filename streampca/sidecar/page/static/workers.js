// The reports of workers and members of transform, and the positions of the model in each partition.

import { element, make, row } from "./dom.js";
import { count, duration, percent } from "./format.js";

const SILENT_AFTER_S = 30; // workers report every few seconds
const ENDED_AFTER_S = 60;

const STATES = {
  starting: "is starting", learning: "is learning", transforming: "is transforming",
  waiting: "has caught up and waits for messages", stopping: "is stopping", stopped: "stopped", silent: "silent, last report",
};

/** Show the reports of `v1/page/workers` and the `positions` of a model, the next offset of each partition. */
export function show(all, positions, now) {
  const reports = all.filter(({ transform }) => transform === null);
  showTransform(all.filter(({ transform }) => transform !== null), now);
  const owners = ownersOf(reports);
  showSentences("workers", reports, owners, now);
  if (!reports.length) element("workers").replaceChildren(make("p", {}, "No worker has reported within the last hour."));
  const partitions = [...new Set([...Object.keys(positions), ...owners.keys()])].sort((a, b) => a - b);
  element("partitions").replaceChildren(...partitions.map((p) => {
    const { name = "–", partition = {} } = owners.get(p) ?? {};
    return row(
      p, count(positions[p]), count(partition.position), count(partition.lag), count(partition.learned),
      count(partition.rejected), percent(partition.loss_ewma), count(partition.clipped), name,
    );
  }));
}

function showTransform(reports, now) {
  element("transform-section").hidden = reports.length === 0;
  const current = showSentences("transform", reports, ownersOf(reports), now);
  element("members").replaceChildren(...current.map(({ name, partitions, transform }) => {
    const lags = Object.values(partitions).map(({ lag }) => lag).filter((lag) => lag !== null);
    return row(
      name, transform.output_topic, count(transform.model_version), Object.keys(partitions).join(", ") || "–",
      lags.length ? count(lags.reduce((sum, lag) => sum + lag)) : "–", count(transform.written), count(transform.rejected),
      transform.committed_at === null ? "–" : `${duration(now - transform.committed_at)} ago`,
    );
  }));
}

/** A sentence for each; those of members that ended a while ago are folded. Returns the reports of the others. */
function showSentences(id, reports, owners, now) {
  const busy = new Set([...owners.values()].map(({ name }) => name));
  const hasEnded = ({ name, silent_s: silent }) => silent > ENDED_AFTER_S && !busy.has(name);
  const [current, ended] = [reports.filter((report) => !hasEnded(report)), reports.filter(hasEnded)];
  element(id).replaceChildren(...current.map((report) => sentence(report, now)));
  const [summary, folded] = element(`${id}-ended`).children;
  element(`${id}-ended`).hidden = ended.length === 0;
  summary.textContent = `${ended.length} ended more than a minute ago`;
  folded.replaceChildren(...ended.map((report) => sentence(report, now)));
  return current;
}

/** Partition → the worker that reported it last. A stopped worker owns no partition. */
function ownersOf(reports) {
  const owners = new Map();
  for (const report of [...reports].sort((a, b) => b.silent_s - a.silent_s)) {
    if (stateOf(report) === "stopped") continue;
    for (const [p, partition] of Object.entries(report.partitions)) owners.set(p, { name: report.name, partition });
  }
  return owners;
}

const stateOf = (report) => (report.state !== "stopped" && report.silent_s > SILENT_AFTER_S ? "silent" : report.state);

function sentence(report, now) {
  const state = stateOf(report);
  const line = make("p", { class: "worker" }, make("strong", {}, report.name), " ");
  line.append(make("span", { class: "state", "data-state": state }, STATES[state] ?? state));
  if (state === "silent" || state === "stopped") line.append(` ${duration(report.silent_s)} ago`);
  else line.append(`, ${count(Math.round(report.messages_per_second))} messages/s; up for ${duration(now - report.started_at)}`);
  if (report.transform?.awaits) line.append(`; waits for a model: ${report.transform.awaits}`);
  if (report.trouble) line.append(make("span", { class: "trouble" }, `; problem: ${report.trouble}`));
  return line;
}
