"""The chart on a real Kubernetes API server: `make k8s-test`. `make test` does not collect this file.

Building the server takes minutes. It has no nodes and no controllers: what is tested is what it accepts.
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
from tests.deploy.rendering import CHANGED, CLUSTERS, NAMESPACE, OPERATORS_SCHEMAS, VARIANTS, Object, of_kind, rendered
from tests.ports import free_ports
from tests.waiting import wait_until

TOOLS = Path(os.environ.get("STREAMPCA_KUBERNETES", "/nowhere"))
GROUPS = {"ScaledObject": ("keda.sh", "v1alpha1"), "HTTPRoute": ("gateway.networking.k8s.io", "v1")}
RENDERED: dict[str, Any] = {name: (values,) for name, values in (CLUSTERS | VARIANTS).items()}
RENDERED |= {f"{name}, changed": (values, *CHANGED) for name, values in VARIANTS.items()}
pytestmark = pytest.mark.timeout(600)


def is_ready(http: httpx.Client) -> bool:
    """Whether the server answers."""
    try:
        return http.get("/readyz").is_success
    except httpx.TransportError:
        return False


def apply(http: httpx.Client, wanted: Object) -> httpx.Response:
    """Apply an object strictly: fields that the server does not know are refused."""
    version, name = wanted["apiVersion"], wanted["metadata"]["name"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    kinds = wait_until(lambda: http.get(base).json().get("resources"), what=f"the kinds of {version}")
    (kind,) = [kind for kind in kinds if kind["kind"] == wanted["kind"] and "/" not in kind["name"]]
    return http.patch(
        f"{base}{f'/namespaces/{NAMESPACE}' * kind['namespaced']}/{kind['name']}/{name}",
        params={"fieldManager": "tests", "fieldValidation": "Strict", "force": "true"},
        content=json.dumps(wanted), headers={"Content-Type": "application/apply-patch+yaml"},
    )  # fmt: skip


def etcd(folder: Path, at: str, peers: str) -> list[str | Path]:
    """The command of the server's database."""
    return [
        TOOLS / "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={at}", f"--advertise-client-urls={at}",
        f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
    ]  # fmt: skip


def server(folder: Path, at: str, port: int, certificates: Certificates) -> list[str | Path]:
    """The command of the server with this database."""
    return [
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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with the operators' types, and a namespace that enforces the restricted Pod Security Standard."""
    folder, (port, *of_etcd) = tmp_path_factory.mktemp("cluster"), free_ports(3)
    at, peers = (f"http://127.0.0.1:{port}" for port in of_etcd)
    certificates = Certificates(folder).make()
    (folder / "tokens.csv").write_text("secret,admin,admin,system:masters\n")
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        for command in (etcd(folder, at, peers), server(folder, at, port, certificates)):
            process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(process.kill)
        trust, login = ssl.create_default_context(cafile=certificates.authority), {"Authorization": "Bearer secret"}
        client = httpx.Client(base_url=f"https://127.0.0.1:{port}", headers=login, verify=trust)
        found = stack.enter_context(client)
        wait_until(lambda: is_ready(found), 400, lambda: (folder / "log").read_text()[-3000:])
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": levels}}
        for wanted in (namespace, *(definition_of(*item) for item in OPERATORS_SCHEMAS.items())):
            assert apply(found, wanted).is_success
        yield found


@pytest.mark.parametrize("name", RENDERED)
def test_the_server_accepts_the_chart_without_a_warning(cluster: httpx.Client, name: str) -> None:
    for wanted in rendered(*RENDERED[name]):
        answer = apply(cluster, wanted)
        assert answer.is_success, answer.text
        assert "Warning" not in answer.headers, answer.headers["Warning"]  # of fields, and of pods


@pytest.mark.parametrize(
    ("mistake", "text"),
    [({"hostNetwork": True}, "would violate PodSecurity"), ({"dnsPolice": "None"}, "field not declared in schema")],
)
def test_the_server_refuses_mistakes(cluster: httpx.Client, mistake: Object, text: str) -> None:
    (job,) = of_kind(rendered({"podSpec": mistake}), "Job")
    answer = apply(cluster, job)
    assert text in answer.text + answer.headers.get("Warning", "")
