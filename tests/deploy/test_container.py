"""The image's commands in a real container: not as root, with a read-only file system, as process 1."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.deploy import files, services
from tests.deploy.container import Container, running, wait_while_running, why_unavailable
from tests.kafka_broker import Broker
from tests.ports import free_ports

DTYPE = "float64"  # that kernels are compiled for, to save time; by default it is all


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    reason = why_unavailable()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"no namespaces in CI: {reason}")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder built like the image, but with this environment's packages instead of downloads."""
    context, image = tmp_path_factory.mktemp("context"), tmp_path_factory.mktemp("image")
    for source in [line[1:] for line in (files.ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]:
        (context / source).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (files.ROOT / source).is_dir() else shutil.copy
        copy(files.ROOT / source, context / source)
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", context / "dist", context)
    image.chmod(0o755)  # pytest's folders are accessible only to their owner
    venv.create(image, with_pip=False, symlinks=True)
    (wheel,) = (context / "dist").glob("*.whl")
    python = image / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    (packages,) = image.glob("lib/python*/site-packages")
    (packages / "needs.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    for script in ("compile_kernels.py", "healthcheck.py"):
        shutil.copy(context / "docker" / script, image / script)
    baseline = files.baseline(files.architecture())
    call(python, image / "compile_kernels.py", DTYPE, NUMBA_CACHE_DIR=str(image / "numba"), **baseline)
    return image


def call(*command: object, **environment: str) -> None:
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "STREAMPCA_", "NUMBA_"))}
    outcome = subprocess.run(
        [str(part) for part in command],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def output_of(image: Path, folder: Path, *command: str, **environment: str) -> str:
    """The output of a command, which must succeed."""
    with running(image, command, environment, folder) as container:
        assert container.wait() == 0, container.log.read_text()
        return container.log.read_text()


def test_the_container_is_confined(image: Path, tmp_path: Path) -> None:
    look = "import os; print(os.getpid(), os.geteuid(), os.access('/', os.W_OK), os.path.exists('/home'))"
    assert output_of(image, tmp_path, "python", "-c", look) == "1 10001 False False\n"
    status = output_of(image, tmp_path, "cat", "/proc/self/status")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    places = [image, image / "numba", tmp_path / "store", "/etc", "/tmp", "/"]  # noqa: S108 - does not exist in the container
    writable = f"import os; print([p for p in {[str(p) for p in places]} if os.access(p, os.W_OK)])"
    assert output_of(image, tmp_path, "python", "-c", writable) == f"['{tmp_path}/store']\n"


def test_kernels_compiled_by_the_build_are_loaded(image: Path, tmp_path: Path) -> None:
    output = output_of(image, tmp_path, "python", f"{image}/compile_kernels.py", DTYPE, NUMBA_DEBUG_CACHE="1")
    assert "data loaded from" in output
    assert "saved" not in output
    assert not list(image.rglob("*.tmp.*"))


@pytest.mark.parametrize(
    "other", [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CACHE_DIR": "/nowhere"}, {"NUMBA_CACHE_DIR": ""}]
)
def test_kernels_missing_in_the_cache_are_compiled(image: Path, tmp_path: Path, other: dict[str, str]) -> None:
    """A small kernel keeps it short."""
    call = "import numpy as np; from streampca.pca.blocked.gauge import cholesky; print(cholesky(np.eye(2))[1])"
    assert "data loaded from" in output_of(image, tmp_path, "python", "-c", call, NUMBA_DEBUG_CACHE="1")
    output = output_of(image, tmp_path, "python", "-c", call, NUMBA_DEBUG_CACHE="1", **other)
    assert output.endswith("True\n")
    assert "data loaded from" not in output
    assert "saved" not in output


def health(image: Path, url: str) -> int:
    """The exit code of the health check."""
    check = [sys.executable, "-I", str(image / "healthcheck.py")]
    return subprocess.run(
        check, env={"HEALTHCHECK_URL": url}, capture_output=True, timeout=20, check=False
    ).returncode  # fmt: skip


@pytest.mark.broker
def test_worker_sidecar_and_producer_work_together_and_stop_on_a_signal(
    image: Path, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic, 2)
    broker.create_topic(f"{topic}-dead")
    ports = free_ports(2)
    environment = services.environment(broker, topic) | {
        "STREAMPCA_WORKER_PORT": str(ports[0]),
        "STREAMPCA_PORT": str(ports[1]),
    }
    worker_at, sidecar_at = (f"http://127.0.0.1:{port}" for port in ports)
    assert health(image, f"{worker_at}/healthz") == 1

    def start(service: str) -> AbstractContextManager[Container]:
        command = ["streampca", *files.services()[service]["command"]]
        return running(image, command, environment, tmp_path)

    with start("worker") as worker, start("producer") as producer, start("sidecar") as sidecar:
        models = Models(DirectoryStore(tmp_path / "store"), topic)
        wait_while_running(worker, lambda: models.newest() is not None, "a model")
        wait_while_running(sidecar, lambda: services.is_ready(f"{sidecar_at}/readyz"), "a ready sidecar")
        wait_while_running(worker, lambda: services.is_ready(f"{worker_at}/readyz"), "a ready worker")
        assert health(image, f"{worker_at}/healthz") == health(image, f"{sidecar_at}/healthz") == 0
        model = httpx.get(f"{sidecar_at}/v1/model", timeout=10).json()
        assert (model["dimensions"], model["components"]) == (128, 8)
        assert producer.stop() == 128 + 15
        assert "Traceback" not in producer.log.read_text()
        assert sidecar.stop() == 0, sidecar.log.read_text()
        assert worker.stop() == 0, worker.log.read_text()
        assert "worker ended" in worker.log.read_text()
    assert sum(broker.end_offsets(topic).values()) > 0
    assert sum(broker.end_offsets(f"{topic}-dead").values()) == 0
