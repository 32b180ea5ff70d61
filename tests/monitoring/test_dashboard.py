"""The dashboard is up to date with dashboard.py and consistent; test_live checks that its panels have data."""

import json
import runpy

import pytest
import yaml

from tests.monitoring.prometheus import DOCKER, metrics_in
from tests.monitoring.test_rules import KNOWN, RECORDED

GRAFANA = DOCKER / "grafana"
BOARD = json.loads((GRAFANA / "dashboards" / "streampca.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
PROCESS_METRICS = {"process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}


def test_the_dashboard_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(GRAFANA)  # as when it is run
    generated = runpy.run_path(str(GRAFANA / "dashboard.py"))["text"]()
    assert (GRAFANA / "dashboards" / "streampca.json").read_text() == generated, (
        "run: python docker/grafana/dashboard.py"
    )


def test_ids_are_unique_and_panels_do_not_overlap() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_panels_have_titles_descriptions_and_units() -> None:
    assert BOARD["uid"] == "streampca"
    assert BOARD["schemaVersion"] >= 36
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0


def test_data_source_and_topic_are_selected_in_the_dashboard() -> None:
    """So it can be imported into any Grafana, and shows one topic at a time."""
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    scrape = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert list(variables) == ["source", "topic"]  # the second is looked up in the first
    assert (variables["source"]["type"], variables["source"]["query"]) == ("datasource", source["type"])
    selected = {"type": source["type"], "uid": "${source}"}
    assert variables["topic"]["datasource"] == BOARD["annotations"]["list"][0]["datasource"] == selected
    for panel in PANELS:
        assert all(used["datasource"] == selected for used in (panel, *panel["targets"]))
    for expression in EXPRESSIONS:
        assert expression.count('topic="$topic"') >= len(metrics_in(expression) - {"up"}), expression


def test_panels_show_every_metric_and_no_unknown_one() -> None:
    used = set().union(*map(metrics_in, EXPRESSIONS))
    assert used <= KNOWN | RECORDED | PROCESS_METRICS
    not_shown = KNOWN - used - {"streampca_model_loss_mean", "streampca_explained_variance_ratio"}  # shown as ratios
    assert not not_shown
