"""The chart on a real Kubernetes API server: `make k8s-test`. `make test` does not collect this file:
building the server takes minutes. There are no nodes and no controllers: what is tested is what the API server accepts.
"""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.deploy.rendering import (
    BARE,
    CHART,
    NAMESPACE,
    OPERATORS_SCHEMAS,
    TOOLS,
    VARIANTS,
    WORKLOADS,
    Object,
    helm,
    identity,
    of_kind,
    pods,
    rendered,
)  # fmt: skip
from tests.ports import free_ports
from tests.waiting import every, wait_until

GROUPS = {"ScaledObject": ("keda.sh", "v1alpha1"), "HTTPRoute": ("gateway.networking.k8s.io", "v1")}
UNAPPROVED = {"api-approved.kubernetes.io": "unapproved: a test"}  # else the server refuses types of its own groups
USER, TOKEN = "admin", "of-the-test"
pytestmark = pytest.mark.timeout(600)


class Cluster:
    """An API server without nodes."""

    def __init__(self, port: int, folder: Path) -> None:
        self._options = ["--server", f"https://127.0.0.1:{port}", "--insecure-skip-tls-verify", "--token", TOKEN]
        self.helm_options = [
            "--kube-apiserver", f"https://127.0.0.1:{port}", "--kube-insecure-skip-tls-verify", "--kube-token", TOKEN,
        ]  # fmt: skip
        self._environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "KUBECONFIG": "/dev/null"}

    def kubectl(self, *arguments: str, given: Any = None) -> subprocess.CompletedProcess[str]:
        """Run a command of kubectl; `given` is an object for its standard input."""
        return subprocess.run(
            [TOOLS / "kubectl", *self._options, "--namespace", NAMESPACE, *arguments],
            env=self._environment, input=json.dumps(given), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def apply(self, given: Any) -> subprocess.CompletedProcess[str]:
        """Apply an object strictly, and print it as the server has it."""
        options = ("--server-side", "--force-conflicts", "--validate=strict", "--output=json", "--filename=-")
        return self.kubectl("apply", *options, given=given)


@contextlib.contextmanager
def process(log: Path, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is stopped at the end of the block; its output goes to `log`."""
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with the namespace, which enforces the restricted Pod Security Standard."""
    folder = tmp_path_factory.mktemp("cluster")
    etcd_port, peers_port, port = free_ports(3)
    at, peers = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peers_port}"
    key = folder / "key.pem"
    key.write_bytes(rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ))  # fmt: skip
    (folder / "tokens.csv").write_text(f"{TOKEN},{USER},{USER},system:masters\n")
    etcd = [
        TOOLS / "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={at}", f"--advertise-client-urls={at}",
        f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
    ]  # fmt: skip
    server = [
        TOOLS / "kube-apiserver", f"--etcd-servers={at}", f"--secure-port={port}", "--bind-address=127.0.0.1",
        "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none", f"--cert-dir={folder / 'certificates'}",
        "--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://cluster.test",
        f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
        f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
    ]  # fmt: skip
    with process(folder / "etcd.log", *etcd), process(folder / "server.log", *server) as running:
        found = Cluster(port, folder)

        def is_ready() -> bool:
            assert running.poll() is None, (folder / "server.log").read_text()[-3000:]
            return found.kubectl("get", "--raw", "/readyz").returncode == 0

        wait_until(is_ready, 120, f"the API server; {folder / 'server.log'}")
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": levels}}
        outcome = found.apply(namespace)
        assert outcome.returncode == 0, outcome.stderr
        yield found


@pytest.fixture(scope="module")
def cluster_with_operators(cluster: Cluster) -> Cluster:
    """The same, with the operators' types."""
    for needed in operator_types():
        outcome = cluster.apply(needed)
        assert outcome.returncode == 0, outcome.stderr
    wait_for = ("wait", "--for=condition=Established", "customresourcedefinitions", "--all", "--timeout=60s")
    assert cluster.kubectl(*wait_for).returncode == 0
    return cluster


def operator_types() -> Iterator[Object]:
    """The definitions of the operators' types, as far as the chart uses them."""
    for kind, schema in OPERATORS_SCHEMAS.items():
        plural, (group, version) = f"{kind.lower()}s", GROUPS.get(kind, ("monitoring.coreos.com", "v1"))
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}", "annotations": UNAPPROVED},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            },
        }


def applied(cluster: Cluster, found: list[Object]) -> dict[tuple[str, str], Object]:
    """The objects as the server has them after they were applied, without an error or a warning."""
    outcome = cluster.apply({"apiVersion": "v1", "kind": "List", "items": found})
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return {identity(o): o for o in json.loads(outcome.stdout)["items"]}


def pod_objects() -> list[Object]:
    """The pods that the controllers of workloads and jobs would create."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{number}-{command}", "labels": pod["metadata"]["labels"]},
            "spec": pod["spec"],
        }
        for number, values in enumerate(BARE.values())
        for command, pod in pods(rendered(values), *WORKLOADS, "Job").items()
    ]


@pytest.mark.parametrize("values", BARE.values(), ids=BARE)
def test_a_bare_server_accepts_the_chart_without_a_warning(cluster: Cluster, values: str) -> None:
    found = rendered(values)
    assert applied(cluster, found).keys() == {identity(o) for o in found}


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_applying_twice_changes_nothing(cluster_with_operators: Cluster, values: str) -> None:
    found = rendered(values)
    first, second = (
        {key: o["metadata"]["resourceVersion"] for key, o in applied(cluster_with_operators, found).items()}
        for _ in range(2)
    )
    assert first.keys() == {identity(o) for o in found}
    assert first == second


def test_helm_installs_upgrades_and_removes_the_chart(cluster: Cluster) -> None:
    def run(*command: str) -> str:
        outcome = helm(*command, *cluster.helm_options)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    def jobs() -> list[str]:
        return cluster.kubectl(
            "get", "job", "--output=name", "--selector=app.kubernetes.io/instance=other"
        ).stdout.split()

    def run_jobs() -> None:
        """As the controller that this server lacks: the job of the topics succeeds."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
        status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
        for job in jobs():
            cluster.kubectl(
                "patch", job, "--subresource=status", "--type=merge", "--patch", json.dumps({"status": status})
            )

    with every(0.5, run_jobs):
        notes = run(
            "install", "other", str(CHART), "--set", "store.url=,ingress.enabled=true,ingress.host=pca.test"
        ).partition("NOTES:")[2]
    assert "set tokens.secret" in notes
    named = set(re.findall(r"((?:statefulset|service)/[\w-]+)", notes))
    assert named == {"statefulset/other-streampca-worker", "service/other-streampca-sidecar"}
    assert cluster.kubectl("get", *named).returncode == 0
    with every(0.5, run_jobs):
        assert "STATUS: deployed" in run("upgrade", "other", str(CHART), "--set", "store.url=,settings.components=9")
    assert jobs() == []  # done, and removed
    run("uninstall", "other")
    assert cluster.kubectl("get", *named).returncode != 0
    assert cluster.kubectl("get", "persistentvolumeclaim/other-streampca-store").returncode == 0


def test_pods_meet_the_restricted_standard(cluster: Cluster) -> None:
    found = pod_objects()
    assert len(found) == 2 * 3 + 2 * 5
    for pod in found:
        outcome = cluster.apply(pod)
        assert (outcome.returncode, outcome.stderr) == (0, "")


def test_mistakes_are_refused(cluster: Cluster) -> None:
    pod = pod_objects()[0]
    pod["metadata"]["name"] = "broken"
    pod["spec"]["containers"][0]["securityContext"]["capabilities"] = {}
    assert 'violates PodSecurity "restricted:latest"' in cluster.apply(pod).stderr
    (settings,) = of_kind(rendered(), "ConfigMap")
    assert ".date: field not declared in schema" in cluster.apply({**settings, "date": {}}).stderr
