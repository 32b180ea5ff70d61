"""The dashboard is up to date with dashboard.py, and shows every metric; test_live checks that its panels have data."""

import json
import runpy

import pytest

from tests.monitoring.prometheus import RULES, metrics_in
from tests.monitoring.test_rules import KNOWN, RECORDED

FILE = RULES.with_name("dashboard.json")
HELM = FILE.parents[2]
BOARD = json.loads(FILE.read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
PROCESS_METRICS = {"process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}


def test_the_dashboard_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HELM)  # as when it is run
    generated = runpy.run_path(str(HELM / "dashboard.py"))["text"]()
    assert FILE.read_text() == generated, "run: make dashboard"


def test_panels_show_every_metric_and_no_unknown_one() -> None:
    used = set().union(*map(metrics_in, EXPRESSIONS))
    assert used <= KNOWN | RECORDED | PROCESS_METRICS
    assert KNOWN - used == {"streampca_model_loss_mean", "streampca_explained_variance_ratio"}  # shown as ratios
