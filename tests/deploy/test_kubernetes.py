"""The manifests beyond the API's own schemas: the Prometheus operator's objects, and who may talk to whom."""

import copy
import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy import files

SCHEMAS = json.loads((Path(__file__).parent / "schemas" / "prometheus-operator.json").read_text())
FOR_THE_OPERATOR = [found for found in files.objects() if found["kind"] in SCHEMAS]
RULES = files.ROOT / "docker" / "prometheus"


def closed(schema: Any) -> Any:
    """The schema without room for fields that it does not name: the API server would drop them in silence."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    own = {name: closed(part) for name, part in schema.items()}
    free = "properties" not in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    return own if free or "type" not in schema else {"additionalProperties": False, **own}


def mistakes(found: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(closed(SCHEMAS[found["kind"]]))
    return [error.message for error in validator.iter_errors(found)]


@pytest.mark.parametrize("found", FOR_THE_OPERATOR, ids=lambda found: f"{found['kind']}-{found['metadata']['name']}")
def test_the_operators_objects_keep_to_its_schemas(found: dict[str, Any]) -> None:
    assert mistakes(found) == []


def test_every_object_of_the_operator_has_a_schema() -> None:
    theirs = [found["kind"] for found in files.objects() if found["apiVersion"] == "monitoring.coreos.com/v1"]
    assert sorted(theirs) == ["PrometheusRule", "ServiceMonitor", "ServiceMonitor"]
    assert [found["kind"] for found in FOR_THE_OPERATOR] == theirs


def test_slips_in_the_operators_objects_are_found() -> None:
    for kind, slip in {
        "ServiceMonitor": lambda spec: spec["endpoints"][0].update(intervall="5s"),
        "PrometheusRule": lambda spec: spec["groups"][1]["rules"][0].update({"for": "a while"}),
    }.items():
        broken = copy.deepcopy(next(found for found in FOR_THE_OPERATOR if found["kind"] == kind))
        slip(broken["spec"])  # type: ignore[no-untyped-call]
        assert len(mistakes(broken)) == 1


def test_the_rules_are_those_of_the_compose_stack() -> None:
    made = runpy.run_path(str(RULES / "for_kubernetes.py"))["text"]()
    assert (files.KUBERNETES / "rules.yaml").read_text() == made, "run: python docker/prometheus/for_kubernetes.py"
    (rule,) = [found for found in files.objects() if found["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((RULES / "rules.yml").read_text())


def test_every_pod_is_reached_at_its_port_only_and_reaches_only_what_it_needs() -> None:
    policies = [found["spec"] for found in files.objects() if found["kind"] == "NetworkPolicy"]
    pods = [found["spec"]["template"] for found in files.objects() if found["kind"] == "Deployment"]
    (brokers,) = [o["data"]["STREAMPCA_BOOTSTRAP_SERVERS"] for o in files.objects() if o["kind"] == "ConfigMap"]
    assert len(policies) == len(pods)
    for pod in pods:
        own = pod["metadata"]["labels"].items()
        (policy,) = [p for p in policies if p["podSelector"]["matchLabels"].items() <= own]
        (container,) = pod["spec"]["containers"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert [port for rule in policy["ingress"] for port in rule["ports"]] == [
            {"port": port["name"]} for port in container["ports"]
        ]
        outside = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
        assert outside == ({53, int(brokers.rpartition(":")[2])} if container["args"] == ["worker"] else set())
