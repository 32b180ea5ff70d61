"""The chart on a real Kubernetes API server: `make k8s-test`. `make test` does not collect this file.

Building the server takes minutes. It has no nodes and no controllers: what is tested is what it accepts and selects.
"""

import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.certificates import Certificates
from tests.deploy.rendering import CLUSTERS, NAMESPACE, OPERATORS_SCHEMAS, Object, of_kind, rendered_with
from tests.ports import free_ports
from tests.waiting import wait_until

TOOLS = Path(os.environ.get("STREAMPCA_KUBERNETES", "/nowhere"))
TOKEN = "of-the-test"  # noqa: S105
GROUPS = {"ScaledObject": ("keda.sh", "v1alpha1"), "HTTPRoute": ("gateway.networking.k8s.io", "v1")}
pytestmark = pytest.mark.timeout(600)


class Cluster:
    """An API server, asked as an administrator."""

    def __init__(self, port: int, authority: Path) -> None:
        headers, trust = {"Authorization": f"Bearer {TOKEN}"}, ssl.create_default_context(cafile=authority)
        self.http = httpx.Client(base_url=f"https://127.0.0.1:{port}", headers=headers, verify=trust)

    def is_ready(self) -> bool:
        try:
            return self.http.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def path_of(self, kind: str, version: str) -> str:
        """Where the objects of a kind are."""
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        (kind_,) = [r for r in self.http.get(base).json()["resources"] if r["kind"] == kind and "/" not in r["name"]]
        return f"{base}/namespaces/{NAMESPACE}/{kind_['name']}" if kind_["namespaced"] else f"{base}/{kind_['name']}"

    def apply(self, wanted: Object) -> httpx.Response:
        """Apply an object, refusing fields that the server does not know."""
        url = f"{self.path_of(wanted['kind'], wanted['apiVersion'])}/{wanted['metadata']['name']}"
        return self.http.patch(
            url, params={"fieldManager": "tests", "fieldValidation": "Strict", "force": "true"},
            content=json.dumps(wanted), headers={"Content-Type": "application/apply-patch+yaml"},
        )  # fmt: skip

    def count(self, kind: str, version: str, selector: str) -> int:
        """How many objects a selector of labels finds."""
        return len(self.http.get(self.path_of(kind, version), params={"labelSelector": selector}).json()["items"])


def commands(folder: Path, certificates: Certificates, port: int) -> Iterator[list[str | Path]]:
    """Those of etcd and of the server, whose user may do everything."""
    etcd_port, peers_port = free_ports(2)
    at, peers = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peers_port}"
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    yield [
        TOOLS / "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={at}", f"--advertise-client-urls={at}",
        f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
    ]  # fmt: skip
    yield [
        TOOLS / "kube-apiserver", f"--etcd-servers={at}", f"--secure-port={port}", "--bind-address=127.0.0.1",
        "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
        f"--tls-cert-file={certificates.server}", f"--tls-private-key-file={certificates.server_key}",
        "--service-account-issuer=https://cluster.test", f"--service-account-key-file={certificates.server}",
        f"--service-account-signing-key-file={certificates.server_key}", "--authorization-mode=RBAC",
        f"--token-auth-file={folder / 'tokens.csv'}", "--disable-admission-plugins=ServiceAccount",
    ]  # fmt: skip


def definition_of(kind: str, schema: Any) -> Object:
    """The type of an operator, as far as the chart uses it."""
    plural, (group, version) = f"{kind.lower()}s", GROUPS.get(kind, ("monitoring.coreos.com", "v1"))
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        # The server wants an annotation for types of its own groups.
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved: a test"}},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with the operators' types, and a namespace that enforces the restricted Pod Security Standard."""
    folder, (port,) = tmp_path_factory.mktemp("cluster"), free_ports(1)
    certificates = Certificates(folder).make()
    with ExitStack() as stack:
        for command in commands(folder, certificates, port):
            log = stack.enter_context((folder / "log").open("ab"))
            process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(process.kill)
        found = Cluster(port, certificates.authority)
        stack.enter_context(found.http)
        wait_until(found.is_ready, 180, lambda: (folder / "log").read_text()[-3000:])
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": levels}}
        for wanted in (namespace, *(definition_of(*item) for item in OPERATORS_SCHEMAS.items())):
            url = found.path_of(wanted["kind"], wanted["apiVersion"]).replace(f"/namespaces/{NAMESPACE}", "")
            assert found.http.post(url, json=wanted).status_code == 201
        wait_until(lambda: found.http.get("/apis/monitoring.coreos.com/v1").is_success, 60, "the operators' types")
        yield found


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_server_accepts_the_chart_without_a_warning(cluster: Cluster, name: str) -> None:
    for wanted in rendered_with(CLUSTERS[name]):
        answer = cluster.apply(wanted)
        assert answer.is_success, answer.text
        assert "Warning" not in answer.headers, answer.headers["Warning"]  # of fields, and of pods


def test_a_default_stack_selects_monitors_rules_and_dashboard(cluster: Cluster) -> None:
    for wanted in rendered_with(CLUSTERS["kube-prometheus-stack"]):
        assert cluster.apply(wanted).is_success
    operator, release = "monitoring.coreos.com/v1", "release=kube-prometheus-stack"
    assert [cluster.count(kind, operator, release) for kind in ("ServiceMonitor", "PrometheusRule")] == [2, 1]
    assert cluster.count("ConfigMap", "v1", "grafana_dashboard=1") == 1


def test_the_server_refuses_mistakes(cluster: Cluster) -> None:
    (job,) = of_kind(rendered_with({"podSpec": {"hostNetwork": True}}), "Job")
    assert "would violate PodSecurity" in cluster.apply(job).headers["Warning"]
    (job,) = of_kind(rendered_with({"podSpec": {"dnsPolice": "None"}}), "Job")
    assert "field not declared in schema" in cluster.apply(job).text
