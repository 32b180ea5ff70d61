"""The manifests' objects for operators: alerts and scrapes for Prometheus, scaling for KEDA."""

import copy
import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from streampca.settings import ConsumerSettings, TransformSettings, WorkerSettings
from tests.deploy import files, manifests
from tests.deploy.manifests import Object, of_kind

SCHEMAS: dict[str, Any] = {
    kind: schema
    for path in (Path(__file__).parent / "schemas").iterdir()
    for kind, schema in json.loads(path.read_text()).items()
    if not kind.startswith("$")
}
BUILT = manifests.built("object-store", *manifests.components_of("object-store"))
FOR_OPERATORS = of_kind(BUILT, *SCHEMAS)
PROMETHEUS = files.ROOT / "docker" / "prometheus"


def without_unknown_fields(schema: Any) -> Any:
    """The schema, but refusing unknown fields, which the API server would drop silently."""
    if isinstance(schema, list):
        return [without_unknown_fields(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    own = {name: without_unknown_fields(part) for name, part in schema.items()}
    free = "properties" not in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    return own if free or "type" not in schema else {"additionalProperties": False, **own}


def schema_errors(found: Object) -> list[str]:
    validator = jsonschema.Draft202012Validator(without_unknown_fields(SCHEMAS[found["kind"]]))
    return [error.message for error in validator.iter_errors(found)]


@pytest.mark.parametrize("found", FOR_OPERATORS, ids=lambda found: "-".join(manifests.identity(found)))
def test_objects_for_operators_match_their_schemas(found: Object) -> None:
    assert schema_errors(found) == []


def test_every_object_for_an_operator_has_a_schema() -> None:
    groups = ("monitoring.coreos.com/", "keda.sh/")
    kinds = [found["kind"] for found in BUILT if found["apiVersion"].startswith(groups)]
    assert sorted(kinds) == ["PrometheusRule", *["ScaledObject"] * 2, *["ServiceMonitor"] * 3]
    assert [found["kind"] for found in FOR_OPERATORS] == kinds


def test_mistakes_in_objects_for_operators_are_detected() -> None:
    for kind, break_it in {
        "ServiceMonitor": lambda spec: spec["endpoints"][0].update(intervall="5s"),
        "PrometheusRule": lambda spec: spec["groups"][1]["rules"][0].update({"for": "a while"}),
        "ScaledObject": lambda spec: spec.update(maxReplicas=3),
    }.items():
        broken = copy.deepcopy(next(found for found in FOR_OPERATORS if found["kind"] == kind))
        break_it(broken["spec"])  # type: ignore[no-untyped-call]
        assert len(schema_errors(broken)) == 1


def test_the_rules_are_up_to_date() -> None:
    for path, text in runpy.run_path(str(PROMETHEUS / "for_kubernetes.py"))["texts"]().items():
        assert path.read_text() == text, "run: python docker/prometheus/for_kubernetes.py"
    (rule,) = of_kind(BUILT, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((PROMETHEUS / "rules.yml").read_text())


def test_the_jobs_of_the_monitors_are_those_of_the_rules() -> None:
    names = ("worker", "sidecar", "transform")
    jobs = [o["spec"]["endpoints"][0]["relabelings"] for o in of_kind(BUILT, "ServiceMonitor")]
    assert jobs == [[{"targetLabel": "job", "replacement": f"streampca-{name}"}] for name in names]
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    assert {job["replacement"] for (job,) in jobs} <= {s["job_name"] for s in scraped}


@pytest.mark.parametrize(("name", "settings_class"), [("worker", WorkerSettings), ("transform", TransformSettings)])
def test_members_are_scaled_on_the_lag_of_their_group(
    name: str, settings_class: type[ConsumerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled, members = (
        next(o for o in of_kind(BUILT, kind) if o["metadata"]["name"] == f"streampca-{name}")
        for kind in ("ScaledObject", "StatefulSet")
    )
    target = scaled["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": members["apiVersion"], "kind": members["kind"], "name": members["metadata"]["name"]}
    assert "replicas" not in members["spec"]  # applying the manifests again must not undo the scaling
    (settings,) = of_kind(BUILT, "ConfigMap")
    for variable, value in settings["data"].items():
        monkeypatch.setenv(variable, value)
    effective = settings_class.read()
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "kafka"
    assert trigger["metadata"] == {
        "bootstrapServers": effective.bootstrap_servers,
        "topic": effective.topic,
        "consumerGroup": effective.group,
        "lagThreshold": "100000",
        "offsetResetPolicy": "earliest",  # a group that has committed nothing starts at the beginning
    }
