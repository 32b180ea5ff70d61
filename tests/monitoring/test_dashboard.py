"""The dashboard is what its source makes, and as Grafana wants it; that its panels have data is in test_live."""

import json
import runpy

import yaml

from tests.monitoring.prometheus import DOCKER, metrics_in
from tests.monitoring.test_rules import KNOWN, RECORDED

GRAFANA = DOCKER / "grafana"
BOARD = json.loads((GRAFANA / "dashboards" / "streampca.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
OF_PROCESSES = {"process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}


def test_the_file_is_what_its_source_makes() -> None:
    made = runpy.run_path(str(GRAFANA / "dashboard.py"))["text"]()
    assert (GRAFANA / "dashboards" / "streampca.json").read_text() == made, "run: python docker/grafana/dashboard.py"


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


def test_panels_explain_themselves() -> None:
    assert BOARD["uid"] == "streampca"
    assert BOARD["schemaVersion"] >= 36
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0


def test_panels_ask_the_source_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    scrape = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape
    for panel in PANELS:
        for asked in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert asked == {"type": source["type"], "uid": source["uid"]}


def test_panels_use_metrics_that_there_are_and_leave_none_out() -> None:
    used = set().union(*map(metrics_in, EXPRESSIONS))
    assert used <= KNOWN | RECORDED | OF_PROCESSES
    left_out = KNOWN - used - {"streampca_model_loss_mean", "streampca_explained_variance_ratio"}  # shown as ratios
    assert not left_out
