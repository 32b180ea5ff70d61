"""The dashboard is up to date with dashboard.py and consistent; test_live checks that its panels have data.

Grafana itself does not run here, but its own SDK is generated from the schemas of Grafana, its panels and its data
sources, and drops unknown fields: if a round trip through it changes nothing, no field is misspelt.
"""

import json
import runpy
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.monitoring.prometheus import DOCKER, RULES, metrics_in
from tests.monitoring.test_rules import KNOWN, RECORDED

GRAFANA = DOCKER / "grafana"
FILE = RULES.with_name("dashboard.json")
BOARD = json.loads(FILE.read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
PROCESS_METRICS = {"process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}
# Fields of Prometheus' annotations; the SDK knows only those that all data sources have in common.
ANNOTATION_FIELDS = {"$.annotations.list.0.titleFormat", "$.annotations.list.0.step"}


def test_the_dashboard_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(GRAFANA)  # as when it is run
    generated = runpy.run_path(str(GRAFANA / "dashboard.py"))["text"]()
    assert FILE.read_text() == generated, "run: python docker/grafana/dashboard.py"


def test_panels_show_every_metric_and_no_unknown_one() -> None:
    used = set().union(*map(metrics_in, EXPRESSIONS))
    assert used <= KNOWN | RECORDED | PROCESS_METRICS
    not_shown = KNOWN - used - {"streampca_model_loss_mean", "streampca_explained_variance_ratio"}  # shown as ratios
    assert not_shown == {"streampca_build_info"}  # for joins


def leaves(value: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """The values that hold no others, with their paths."""
    if value and isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{path}.{key}")
    else:
        yield path, value


def test_grafanas_sdk_accepts_the_dashboard() -> None:
    register_default_plugins()
    accepted = dict(leaves(json.loads(JSONEncoder().encode(Dashboard.from_json(BOARD)))))
    changed = {path for path, value in leaves(BOARD) if accepted.get(path, accepted) != value}
    assert changed == ANNOTATION_FIELDS
