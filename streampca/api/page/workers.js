// Who learns, and how far: the workers' own reports beside the positions of the model.

import { count, duration, element, make, percent, row } from "./words.js";

const SILENT_S = 30; // workers report every few seconds

const DOING = {
  starting: "starts", learning: "learns", waiting: "has read everything, waits for more", stopping: "stops",
  stopped: "has stopped", silent: "is silent",
};

/** Show the reports of `v1/workers` and the `positions` of a model, an object of next offsets by partition. */
export function show(reports, positions, now) {
  element("workers").replaceChildren(
    ...(reports.length ? reports.map((report) => sentence(report, now)) : [make("p", {}, "No worker has reported within an hour.")]),
  );
  const owners = ownersOf(reports);
  const partitions = [...new Set([...Object.keys(positions), ...owners.keys()])].sort((a, b) => a - b);
  element("partitions").replaceChildren(...partitions.map((p) => {
    const { name = "–", partition = {} } = owners.get(p) ?? {};
    return row(
      p, count(positions[p]), count(partition.position), count(partition.lag), count(partition.learned),
      count(partition.rejected), percent(partition.loss_ewma), name,
    );
  }));
}

/** Partition → the worker that reported it last. A worker that stopped owns nothing. */
function ownersOf(reports) {
  const owners = new Map();
  for (const report of [...reports].sort((a, b) => b.silent_s - a.silent_s)) {
    if (stateOf(report) === "stopped") continue;
    for (const [p, partition] of Object.entries(report.partitions)) owners.set(p, { name: report.name, partition });
  }
  return owners;
}

const stateOf = (report) => (report.state !== "stopped" && report.silent_s > SILENT_S ? "silent" : report.state);

function sentence(report, now) {
  const state = stateOf(report);
  const says = make("p", { class: "worker" }, make("strong", {}, report.name), " ");
  says.append(make("span", { class: "state", "data-state": state }, DOING[state] ?? state));
  if (state === "silent" || state === "stopped") says.append(` since ${duration(report.silent_s)}`);
  else says.append(`, ${count(Math.round(report.messages_per_second))} messages a second; up for ${duration(now - report.started_at)}`);
  if (report.trouble) says.append(make("span", { class: "trouble" }, `; in trouble: ${report.trouble}`));
  return says;
}
