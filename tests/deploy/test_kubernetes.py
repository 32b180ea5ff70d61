"""The manifests' objects for the Prometheus operator, and their network policies."""

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


def without_unknown_fields(schema: Any) -> Any:
    """The schema, but refusing unknown fields, which the API server would drop silently."""
    if isinstance(schema, list):
        return [without_unknown_fields(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    own = {name: without_unknown_fields(part) for name, part in schema.items()}
    free = "properties" not in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    return own if free or "type" not in schema else {"additionalProperties": False, **own}


def schema_errors(found: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(without_unknown_fields(SCHEMAS[found["kind"]]))
    return [error.message for error in validator.iter_errors(found)]


@pytest.mark.parametrize("found", FOR_THE_OPERATOR, ids=lambda found: f"{found['kind']}-{found['metadata']['name']}")
def test_objects_for_the_operator_match_its_schemas(found: dict[str, Any]) -> None:
    assert schema_errors(found) == []


def test_every_object_for_the_operator_has_a_schema() -> None:
    kinds = [found["kind"] for found in files.objects() if found["apiVersion"] == "monitoring.coreos.com/v1"]
    assert sorted(kinds) == ["PrometheusRule", "ServiceMonitor", "ServiceMonitor"]
    assert [found["kind"] for found in FOR_THE_OPERATOR] == kinds


def test_mistakes_in_objects_for_the_operator_are_detected() -> None:
    for kind, break_it in {
        "ServiceMonitor": lambda spec: spec["endpoints"][0].update(intervall="5s"),
        "PrometheusRule": lambda spec: spec["groups"][1]["rules"][0].update({"for": "a while"}),
    }.items():
        broken = copy.deepcopy(next(found for found in FOR_THE_OPERATOR if found["kind"] == kind))
        break_it(broken["spec"])  # type: ignore[no-untyped-call]
        assert len(schema_errors(broken)) == 1


def test_the_rules_are_up_to_date() -> None:
    generated = runpy.run_path(str(RULES / "for_kubernetes.py"))["text"]()
    assert (files.KUBERNETES / "rules.yaml").read_text() == generated, "run: python docker/prometheus/for_kubernetes.py"
    (rule,) = [found for found in files.objects() if found["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((RULES / "rules.yml").read_text())


def test_network_policies_allow_only_the_necessary_traffic() -> None:
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
        outside = {port["port"] for rule in policy.get("egress", []) for port in rule["ports"]}
        assert outside == ({53, int(brokers.rpartition(":")[2])} if container["args"] == ["worker"] else set())
