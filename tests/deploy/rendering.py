"""The chart, rendered by the Helm that `make helm-test` builds."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.deploy import files

Object = dict[str, Any]
HELM = os.environ.get("STREAMPCA_HELM", "/nowhere")
CHART = files.ROOT / "helm" / "streampca"
NAMESPACE = "streampca"
CHANGED = ("--values", str(Path(__file__).with_name("values.yaml")))
KUBERNETES = "1.34"
WORKLOADS = ("Deployment", "StatefulSet")
PUBLIC = "tls.secret=certificate,tokens.secret=tokens,ingress.enabled=true,ingress.host=pca.test"
ROUTE = "httpRoute.enabled=true,httpRoute.parentRefs[0].name=public"
BACKFILL = "backfill.enabled=true,backfill.sources={s3://lake/a,/lake/b},backfill.field=embedding"
BARE = {  # without operators
    "bucket": "",
    "bucket, all else": f"transform.enabled=true,sidecar.autoscaling.enabled=true,{PUBLIC},{BACKFILL}",
    "disk": "store.url=",
    "disk, all else": f"store.url=,transform.enabled=true,{PUBLIC},{BACKFILL}",
}
OPERATORS = (
    "transform.enabled=true,monitoring.serviceMonitors=true,monitoring.prometheusRule=true,"
    "monitoring.dashboard=true,sidecar.autoscaling.enabled=true,"
    f"autoscaling.enabled=true,transform.autoscaling.enabled=true,{ROUTE}"
)
VARIANTS = BARE | {"bucket and operators": f"{OPERATORS},{PUBLIC}", "disk and operators": f"store.url=,{OPERATORS}"}
_MSK = {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"}
ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/pca"}
CLUSTERS: dict[str, Object] = {  # what their users set
    "kube-prometheus-stack": {
        "monitoring": {
            "serviceMonitors": True, "prometheusRule": True, "dashboard": True, "interval": "30s",
            "labels": {"release": "kube-prometheus-stack"},
        },
    },
    "OpenShift": {"podSecurityContext": {"fsGroup": None}, "store": {"url": ""}},
    "EKS with IRSA": {"settings": _MSK, "worker": {"serviceAccount": {"annotations": ROLE}}},
    "EKS with Pod Identity": {"settings": _MSK, "store": {"url": ""}},
    "IPv6 alone": {"networkPolicy": {"clientCidrs": ["fd00:10::/48"]}},
    "ALB": {
        "ingress": {
            "enabled": True, "className": "alb", "host": "pca.test",
            "annotations": {"alb.ingress.kubernetes.io/target-type": "ip"},
        },
        "networkPolicy": {"clientNamespaces": ["search"]},
    },
}  # fmt: skip
OPERATORS_SCHEMAS: dict[str, Any] = {
    kind: schema
    for path in (Path(__file__).parent / "schemas").iterdir()
    for kind, schema in json.loads(path.read_text()).items()
    if not kind.startswith("$")
}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": "/dev/null"}
    return subprocess.run(
        [HELM, *arguments, "--namespace", NAMESPACE],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def template(values: str | Object = "", *options: str, release: str = "streampca") -> subprocess.CompletedProcess[str]:
    """Render the chart with these values changed (`name=value,…`, or as a file has them)."""
    if not isinstance(values, str):
        options += tuple(f"--set-json={name}={json.dumps(own)}" for name, own in values.items())
        values = ""
    return helm("template", release, str(CHART), "--kube-version", KUBERNETES, "--set", values, *options)


def rendered(values: str | Object = "", *options: str, release: str = "streampca") -> list[Object]:
    """The objects that the chart makes."""
    outcome = template(values, *options, release=release)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return [o for o in yaml.load_all(outcome.stdout, yaml.CSafeLoader) if o]


def of_kind(found: list[Object], *kinds: str) -> list[Object]:
    return [o for o in found if o["kind"] in kinds]


def identity(found: Object) -> tuple[str, str]:
    return found["kind"], found["metadata"]["name"]


def pods(found: list[Object], *kinds: str) -> dict[str, Object]:
    """The template of the pods that run each command: of the components with a port, or of other kinds."""
    templates = [o["spec"]["template"] for o in of_kind(found, *(kinds or WORKLOADS))]
    return {pod["spec"]["containers"][0]["args"][0]: pod for pod in templates}


def settings_of(found: list[Object]) -> dict[str, str]:
    """The data of the ConfigMap."""
    (settings,) = (o for o in of_kind(found, "ConfigMap") if "streampca.json" not in o["data"])
    return settings["data"]


def egress_of(found: list[Object]) -> dict[str, set[int]]:
    """The ports to which each network policy lets its pods connect."""
    return {
        o["metadata"]["name"].removeprefix("streampca-"): {
            port["port"] for rule in o["spec"].get("egress", []) for port in rule["ports"]
        }
        for o in of_kind(found, "NetworkPolicy")
    }
