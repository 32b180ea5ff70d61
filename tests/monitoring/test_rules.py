"""The rules and the scrape configuration: promtool accepts them, they use the code's metrics, and the runbook helps.

The runbook has a section for every alert and every reason of dead letters, and quotes lines that the code logs.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

import streampca
from streampca.formats.codec import REASONS
from streampca.transform.metrics import TransformMetrics
from streampca.transform.outputs import OUTPUT_TOO_LARGE
from streampca.worker.metrics import WorkerMetrics
from tests.command_line import succeeded
from tests.deploy import files
from tests.example_models import sidecar_registry
from tests.monitoring.prometheus import DOCKER, RULES, described, metrics_in, program

FOLDER = DOCKER / "prometheus"
PAGE = (DOCKER.parent / "docs" / "runbook.md").read_text()
RUNBOOK = "https://github.com/streampca/streampca/blob/main/docs/runbook.md"
ENTRIES = [rule for group in yaml.load(RULES.read_text(), yaml.CSafeLoader)["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in ENTRIES if "alert" in rule]
RECORDED = {rule["record"] for rule in ENTRIES if "record" in rule}
REGISTRIES = {
    "worker": WorkerMetrics("t").registry,
    "sidecar": sidecar_registry(),
    "transform": TransformMetrics("t").registry,
}
KNOWN = {"up", "process_start_time_seconds"}.union(*map(described, REGISTRIES.values()))


SCENARIOS = ("tests.yml", "tests_of_hours.yml")


def promtool(*arguments: str, folder: Path = FOLDER) -> None:
    """Run promtool, which must accept the files."""
    environment = {**os.environ, "GOGC": "400"}  # collects garbage less often, which takes a fifth of the time
    succeeded(program("promtool"), *arguments, cwd=folder, env=environment)


def test_promtool_accepts_the_configuration_as_the_compose_file_mounts_it(tmp_path: Path) -> None:
    for mount in files.services()["prometheus"]["volumes"]:
        source, target = mount.split(":")[:2]
        if target.startswith("/etc/prometheus/"):
            shutil.copy(files.ROOT / source, tmp_path / Path(target).name)
    promtool("check", "config", "prometheus.yml", folder=tmp_path)


@pytest.mark.parametrize("scenarios", SCENARIOS)
def test_the_alerts_of_each_scenario_fire(scenarios: str) -> None:
    promtool("test", "rules", scenarios)


def test_processes_name_their_role() -> None:
    for role, registry in REGISTRIES.items():
        samples = [sample for family in registry.collect() for sample in family.samples]
        assert [s.labels["role"] for s in samples if s.name == "streampca_build_info"] == [role]


@pytest.mark.parametrize("rule", ENTRIES)
def test_rules_use_existing_metrics_of_one_namespace(rule: dict) -> None:
    kept = re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"])
    assert all(labels.startswith("cluster, namespace, ") for labels in kept)
    assert not re.search(r"\b(absent|avg|count|group|max|min|sum)\b(?! by)", rule["expr"])
    used = metrics_in(rule["expr"])
    assert used
    assert used <= KNOWN | RECORDED


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_are_described_and_tested(alert: dict) -> None:
    name, texts = alert["alert"], alert["annotations"]
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert texts.keys() == {"summary", "description", "runbook_url"}
    scenarios = "".join((FOLDER / file).read_text() for file in SCENARIOS)
    assert f'alertname="{name}"' in scenarios, "no scenario in which it fires"
    assert texts["runbook_url"] == f"{RUNBOOK}#{name.lower()}"


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def test_every_alert_has_a_section() -> None:
    assert re.findall(r"^### (Streampca\w+)$", PAGE, re.MULTILINE) == [alert["alert"] for alert in ALERTS]


def test_every_reason_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("Reasons of dead letters"), re.MULTILINE)
    assert rows == [*REASONS, OUTPUT_TOO_LARGE]


def test_quoted_lines_are_in_the_code() -> None:
    code = "".join(path.read_text() for path in Path(streampca.__file__).parent.rglob("*.py"))
    quoted = re.findall(r"`((?!streampca|ls )[a-z]+ [a-z, ]+?)(?: …)?`", PAGE)
    assert len(quoted) > 10
    assert [line for line in quoted if f'"{line}' not in code] == []


def test_links_within_the_page_have_targets() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings
