"""Generates the Grafana dashboard: `make dashboard` writes the chart's dashboard.json.

Every panel's description says what it shows and when to act. Widths are in Grafana's 24 columns. Data source, cluster,
namespace and topic are variables of the dashboard, so that it can be imported into any Grafana.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from panels import SELECTED, SOURCE, Panel, bars, heatmap, instant, lines, quantiles, query, stat

OUTPUT = Path(__file__).parent / "streampca" / "files" / "dashboard.json"
LEARNED = 'streampca_messages_total{outcome="learned"}'
# Alerts about a process that is down have no topic.
ALERTS = f'ALERTS{{alertname=~"Streampca.*", alertstate="firing", {SELECTED}, topic=~"$topic|"}}'
TARGET = "cluster, namespace, job, instance"

STATS = [
    stat("Messages learned", "Version of the model being served: the number of messages learned.",
         "max(streampca_model_version)"),
    stat("Explained variance", "Share of the variance explained by the components.",
         "max(sum by (instance) (streampca_model_explained_variance_ratio))", "percentunit"),
    stat("Recent loss", "Relative residual ‖r‖²/‖y‖² over the last 1000 messages or so.",
         "max(streampca_model_loss_ewma)", "percentunit"),
    stat("Messages per second", "Messages learned per second by all workers.",
         f"sum(rate({LEARNED}[$__rate_interval]))", "mps"),
    stat("Lag", "Messages that are not learned yet, all partitions.",
         "sum(streampca_consumer_lag_messages)", red_from=100_000),
    stat("Dead letters", "Records rejected since the workers started.",
         "sum(streampca_records_rejected_total) or vector(0)", red_from=1),
    stat("Model age", "Age of the model being served. It also grows while no messages arrive.",
         "max(streampca_model_age_seconds)", "s", red_from=300),
    stat("Alerts", "Alerts that are firing; docs/runbook.md says what to do.",
         f"count({ALERTS}) or vector(0)", red_from=1),
]  # fmt: skip

MODEL = [
    lines("Loss", "Relative residual of messages, scored before they are learned: all-time mean and recent mean. "
          "Recent above all-time for long means that the data have drifted.",
          query("max(streampca_model_loss_ratio)", "all-time"), query("max(streampca_model_loss_ewma)", "recent"),
          query("max by (partition) (streampca_loss_ewma)", "partition {{partition}}"), unit="percentunit"),
    lines("Explained variance", "Share of the variance explained by the components, together and each.",
          query("max(sum by (instance) (streampca_model_explained_variance_ratio))", "total"),
          query("max by (component) (streampca_model_explained_variance_ratio)", "{{component}}"), unit="percentunit"),
    bars("Scree", "Share of the variance explained by each component. "
         "Where the bars level off, more components add little.",
         instant("sort_desc(max by (component) (streampca_model_explained_variance_ratio))", "{{component}}"),
         "percentunit"),
    heatmap("Loss distribution", "Distribution of the relative residual of single messages. "
            "A second band means a second kind of data.",
            "sum by (le) (rate(streampca_prequential_loss_ratio_bucket[$__rate_interval]))"),
    lines("Missing partitions", "Partitions and backfills that models wait for, or whose checkpoints cannot be read.",
          query("max(streampca_partitions_missing)", "missing")),
    lines("Versions", "Version published by the workers, and served by each sidecar. The lines should coincide.",
          query("max(streampca_published_version)", "published"),
          query("streampca_model_version", "served by {{instance}}")),
    lines("Sampling error of the subspace", "Estimated sum of squared sines of the angles between the components' "
          "plane and that of the stream's distribution, from 0 to k. It falls as 1/messages; with four partitions or "
          "more.",
          query("max(streampca_model_subspace_error)", "subspace")),
    lines("Sampling error of the axes", "Estimated standard error of each axis, an angle. Near 90° means that its "
          "variance is too close to another's to tell the two apart.",
          query("deg(max by (component) (streampca_model_axis_error_radians))", "{{component}}"), unit="degree"),
    lines("Drift", "Recent loss divided by all-time loss; above 1.25 for half an hour an alert fires.",
          query("max(streampca_model_loss_ewma / streampca_model_loss_ratio)", "recent / all-time")),
    lines("Drift from pinned models", "Share of new messages' variance along the newest axes and those of each "
          "pinned model, as the newest model expects it; squared shift of the mean, by the pinned model's total "
          "variance. 1 of *outdated* means that the pinned model no longer fits. Empty without a pin.",
          query("max(streampca_drift_newest_explained_variance_ratio)", "newest"),
          query("max by (pin) (streampca_drift_explained_variance_ratio)", "{{pin}}"),
          query("max by (pin) (streampca_drift_mean_shift_ratio)", "mean, {{pin}}"),
          query("max by (pin) (streampca_drift_outdated)", "outdated, {{pin}}"), unit="percentunit"),
    lines("Angle to pinned models", "Largest principal angle between the newest axes and those of each pinned model.",
          query("deg(max by (pin) (streampca_drift_angle_radians))", "{{pin}}"), unit="degree"),
]  # fmt: skip

STREAM = [
    lines("Throughput", "Messages per second, learned, rejected and skipped (deletes).",
          query("sum by (outcome) (rate(streampca_messages_total[$__rate_interval]))", "{{outcome}}"), unit="mps"),
    lines("Throughput by partition", "Progress of each partition, offsets per second.",
          query("max by (partition) (deriv(streampca_next_offset[$__rate_interval]))", "{{partition}}"), unit="mps"),
    lines("Busy", "Share of time that each worker spends learning. "
          "Near 100 % with lag: add workers.",
          query("rate(streampca_learn_seconds_total[$__rate_interval])", "{{instance}}"), unit="percentunit"),
    lines("Lag in messages", "Messages between each partition's position and its end. "
          "Stale while no broker answers (panel Up).",
          query("max by (partition) (streampca_consumer_lag_messages)", "{{partition}}")),
    lines("Lag in time", "Age of the newest record learned, when it was learned. Constant while no records arrive.",
          query("max by (partition) (streampca_event_time_lag_seconds)", "{{partition}}"), unit="s"),
    lines("Positions", "Next offset of each partition to learn.",
          query("max by (partition) (streampca_next_offset)", "{{partition}}")),
    lines("Dead letters", "Records rejected per minute, by reason.",
          query("60 * sum by (reason) (rate(streampca_records_rejected_total[$__rate_interval]))", "{{reason}}")),
    lines("Partitions by worker", "Partitions assigned to each worker, partitions waiting for the schema registry, "
          "and rebalances per minute.",
          query("streampca_partitions_owned", "{{instance}}"), query("sum(streampca_stalled)", "stalled"),
          query("60 * sum by (event) (rate(streampca_rebalances_total[$__rate_interval]))", "{{event}} per minute")),
    lines("Skipped records and wrong times", "Deletes, offsets removed by retention before they were read, and records "
          "with a timestamp in the future or in another unit.",
          query("sum(streampca_records_skipped_total)", "deletes"),
          query("sum(streampca_offset_gap_messages_total)", "offset gap"),
          query("max by (partition) (streampca_timestamps_ahead)", "ahead of time, {{partition}}"),
          query("sum(streampca_odd_timestamps_total)", "outside 1990 to 2100")),
]  # fmt: skip

CHECKPOINTS = [
    lines("Checkpoint age", "Time since each partition's last checkpoint. It also grows while a partition is idle.",
          query("time() - max by (partition) (streampca_checkpoint_last_success_timestamp_seconds)", "{{partition}}"),
          unit="s"),
    lines("Time to save and publish", "Time to write a checkpoint, and to merge and write a model.",
          *quantiles("streampca_checkpoint_duration_seconds", legend="checkpoint"),
          *quantiles("streampca_publish_duration_seconds", legend="model"), unit="s"),
    lines("Failures", "Failed checkpoint writes, restores, publications and model loads per minute; all are retried.",
          query("60 * sum(rate(streampca_checkpoints_postponed_total[$__rate_interval]))", "checkpoints"),
          query("60 * sum(rate(streampca_restore_failures_total[$__rate_interval]))", "restores"),
          query("60 * sum(rate(streampca_publish_failures_total[$__rate_interval]))", "models"),
          query("60 * sum by (cause) (rate(streampca_model_load_failures_total[$__rate_interval]))",
                "loading: {{cause}}")),
    lines("Requests to the object store", "Requests of workers and sidecars per minute, by operation and outcome, "
          "without the repetitions of those that fail; 0 with a store in a folder.",
          query("60 * sum by (operation, outcome) (rate(streampca_store_requests_total[$__rate_interval])) "
                "or vector(0)", "{{operation}} {{outcome}}")),
    lines("Latency of the object store", "Mean duration of a request, by operation; 0 with a store in a folder.",
          query("sum by (operation) (rate(streampca_store_request_duration_seconds_sum[$__rate_interval])) / "
                "sum by (operation) (rate(streampca_store_request_duration_seconds_count[$__rate_interval])) "
                "or vector(0)", "{{operation}}"), unit="s"),
    lines("Numerical error", "Largest entry of |C†C − I| at each partition's last checkpoint, "
          "normally far below 0.001.",
          query("max by (partition) (streampca_pinv_error)", "{{partition}}"), unit="sci"),
    lines("Clipped messages", "Messages per minute that were too far from the mean to be learned as they are: they "
          "would have added more than 5 % to the total variance.",
          query("60 * max by (partition) (deriv(streampca_clipped_messages[$__rate_interval]))", "{{partition}}")),
    lines("Unusual messages", "Share of the messages with p below 0.05 and 0.01, by their scores before they were "
          "learned; 5 % and 1 % while the stream does not change.",
          query("sum(rate(streampca_p_value_bucket{le=\"0.05\"}[$__rate_interval])) / "
                "sum(rate(streampca_p_value_count[$__rate_interval]))", "p ≤ 0.05"),
          query("sum(rate(streampca_p_value_bucket{le=\"0.01\"}[$__rate_interval])) / "
                "sum(rate(streampca_p_value_count[$__rate_interval]))", "p ≤ 0.01"), unit="percentunit"),
    lines("Gaps", "Share of the learned messages that lack entries, and of the entries that are missing in a "
          "partition's messages; 0 with missing=refuse.",
          query("sum(rate(streampca_vectors_with_gaps_total[$__rate_interval])) / "
                "sum(rate(streampca_messages_total{outcome=\"learned\"}[$__rate_interval])) or vector(0)", "messages"),
          query("max by (partition) (streampca_missing_entries_ratio) or vector(0)", "entries, {{partition}}"),
          unit="percentunit"),
]  # fmt: skip

REQUESTS = [
    lines("Requests", "Requests per second, by route and status.",
          query("sum by (route, code) (rate(streampca_request_duration_seconds_count[$__rate_interval]))",
                "{{route}} {{code}}"),
          unit="reqps"),
    lines("Latency", "Request latency, by route.",
          *quantiles("streampca_request_duration_seconds", "route", "{{route}}"), unit="s"),
    lines("Failed and slow", "Share of the requests, without probes and the page's own, over 5 minutes, that failed "
          "(objective: 0.1 %) or took longer than 0.25 s (1 %).",
          query("streampca:request_errors:ratio5m", "failed"), query("streampca:request_slow:ratio5m", "slow"),
          unit="percentunit"),
    lines("Vectors", "Vectors projected, reconstructed or scored per second.",
          query("sum by (operation) (rate(streampca_vectors_total[$__rate_interval]))", "{{operation}}")),
    lines("Model age", "Age of the model that each sidecar serves.",
          query("streampca_model_age_seconds", "{{instance}}"), unit="s"),
    lines("Limits reached", "Requests refused or ended per minute, by the limit that they reached.",
          query("60 * sum by (limit) (rate(streampca_limits_reached_total[$__rate_interval]))", "{{limit}}")),
]  # fmt: skip

TRANSFORM = [
    lines("Transformed", "Records per second of committed transactions of `streampca transform`, by outcome, and "
          "outputs with the time of sending.",
          query("sum by (outcome) (rate(streampca_transform_records_total[$__rate_interval]))", "{{outcome}}"),
          query("sum(rate(streampca_transform_timestamps_replaced_total[$__rate_interval]))", "time of sending"),
          query("max(streampca_transform_lag_messages)", "largest lag")),
    lines("Transactions", "Transactions per second, by outcome. Aborted ones are rebalances or were refused; of these, "
          "and of those that failed, the records are read again.",
          query("sum by (outcome) (rate(streampca_transform_transactions_total[$__rate_interval]))", "{{outcome}}")),
    lines("Commits", "Time to commit a transaction.",
          *quantiles("streampca_transform_commit_duration_seconds", "instance", "{{instance}}"), unit="s"),
    lines("Models used", "Version of the model that each member has used last.",
          query("streampca_transform_model_version", "{{instance}}")),
    lines("Members", "Partitions of each member; whether a broker answers it; seconds since its loop's last iteration.",
          query("streampca_transform_partitions_owned", "partitions of {{instance}}"),
          query("streampca_transform_broker_connected", "broker, for {{instance}}"),
          query("time() - streampca_transform_loop_last_tick_timestamp_seconds", "loop of {{instance}}")),
]  # fmt: skip

PROCESSES = [
    lines("Up", "1 while the process answers Prometheus, and while a broker answers the worker.",
          query(f"up and on ({TARGET}) last_over_time(streampca_build_info[1d])", "{{job}} {{instance}}"),
          query("streampca_broker_connected", "broker, for {{instance}}"), min=0, max=1),
    lines("Loop", "Time since the last iteration of each worker's loop, by two machines' clocks: a few seconds. If it "
          "grows, the worker hangs.",
          query("time() - streampca_loop_last_tick_timestamp_seconds", "{{instance}}"), unit="s"),
    lines("Overdue saves", "Time since each member should have saved or committed what it has read: 0.",
          query("streampca_save_overdue_seconds", "{{instance}}"),
          query("streampca_transform_save_overdue_seconds", "{{instance}}"), unit="s"),
    lines("Memory", "Resident memory. A worker's is constant once it has all its partitions.",
          query('process_resident_memory_bytes', "{{job}} {{instance}}"), unit="bytes"),
    lines("CPU", "Cores in use.",
          query('rate(process_cpu_seconds_total[$__rate_interval])', "{{job}} {{instance}}")),
    lines("Uptime", "Time since each process started; drops are restarts.",
          query('time() - process_start_time_seconds', "{{job}} {{instance}}"), unit="s"),
]  # fmt: skip

SECTIONS = [
    ("", STATS), ("Model", MODEL), ("Stream", STREAM), ("Checkpoints", CHECKPOINTS),
    ("Requests", REQUESTS), ("Transform", TRANSFORM), ("Processes", PROCESSES),
]  # fmt: skip


def positioned() -> Iterator[Panel]:
    """All panels with ids and positions, row by row."""
    top = number = 0
    for title, panels in SECTIONS:
        if title:
            number += 1
            yield {"type": "row", "id": number, "title": title, "collapsed": False, "panels": [],
                   "gridPos": {"h": 1, "w": 24, "x": 0, "y": top}}  # fmt: skip
            top += 1
        left, height = 0, 0
        for each in panels:
            size = each["gridPos"]
            if left + size["w"] > 24:
                left, top = 0, top + height
            number, height = number + 1, size["h"]
            yield {**each, "id": number, "gridPos": {**size, "x": left, "y": top}}
            left += size["w"]
        top += height


def variables() -> list[dict[str, Any]]:
    """What the user selects: the data source, then a cluster, a namespace in it and a topic there."""
    found: list[dict[str, Any]] = [
        {"name": "source", "label": "Data source", "type": "datasource", "query": SOURCE["type"]}
    ]
    for name, scope in (("cluster", ""), ("namespace", 'cluster=~"$cluster"'), ("topic", SELECTED)):
        found.append({
            "name": name, "label": name.title(), "type": "query", "datasource": SOURCE,
            "query": f"label_values(streampca_build_info{{{scope}}}, {name})",
            "refresh": 2, "sort": 1,  # when the time range changes; by name
        })  # fmt: skip
    return found


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    return {
        "uid": "streampca", "title": "streampca",
        "description": "Principal components of a Kafka topic: model, workers, sidecars.",
        "tags": ["streampca"], "schemaVersion": 39, "version": 1, "editable": False, "graphTooltip": 1,
        "time": {"from": "now-30m", "to": "now"}, "refresh": "5s", "timezone": "browser",
        "templating": {"list": variables()}, "links": [],
        "annotations": {"list": [{
            "name": "Alerts", "enable": True, "iconColor": "red", "datasource": SOURCE, "titleFormat": "{{alertname}}",
            "expr": ALERTS, "step": "30s",
        }]},
        "panels": list(positioned()),
    }  # fmt: skip


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(text())
