"""The image, really built and run: `make image-test`. `make test` does not collect this file, which takes minutes."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from streampca.version import __version__
from tests.deploy import files, oci
from tests.deploy.oci import wait_while_running
from tests.example_models import models_in, numbered
from tests.kafka_broker import Broker
from tests.ports import free_ports
from tests.waiting import every, is_ready

pytestmark = pytest.mark.timeout(900)


def environment_of_services(broker: Broker, topic: str) -> dict[str, str]:
    """The environment of docker-compose.yml's services, with this broker and topic."""
    shipped = {name: str(value) for name, value in files.services()["worker"]["environment"].items()}
    del shipped["STREAMPCA_STORE"]  # the container's
    return shipped | {
        "STREAMPCA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "STREAMPCA_TOPIC": topic,
        "STREAMPCA_DEAD_LETTER_TOPIC": f"{topic}-dead",
        "STREAMPCA_GROUP_ID": topic,
    }


def memory_limit(service: str) -> int:
    """A service's limit of memory, in bytes."""
    limit = files.services()[service]["deploy"]["resources"]["limits"]["memory"]
    return int(limit[:-1]) * {"M": 1 << 20, "G": 1 << 30}[limit[-1]]


@pytest.fixture(scope="module")
def image() -> Iterator[oci.Image]:
    """The image of this work tree."""
    reason = oci.why_unavailable()
    if reason:
        pytest.fail(reason)
    with oci.built() as image:
        yield image


def output_of(image: oci.Image, folder: Path, *command: str, **environment: str) -> str:
    """The output of a command, which must succeed."""
    with oci.running(image, command, environment, memory_limit("worker"), folder) as container:
        assert container.wait(240) == 0, container.log.read_text()
        return container.log.read_text()


def test_it_holds_the_package_its_extras_and_no_tools(image: oci.Image, tmp_path: Path) -> None:
    assert output_of(image, tmp_path, "streampca", "--version") == f"streampca {__version__}\n"
    modules = "pyarrow, fastavro, confluent_kafka.schema_registry, grpc_tools, google.protobuf, obstore, streampca"
    assert output_of(image, tmp_path, "python", "-c", f"import {modules}") == ""
    look = "from importlib.metadata import distributions as d; import json; print(json.dumps([x.name for x in d()]))"
    installed = {name.lower() for name in json.loads(output_of(image, tmp_path, "python", "-I", "-c", look))}
    assert not installed & {"pip", "hatchling", "pytest", "mypy", "uv"}


def test_the_sidecars_own_image_is_small_and_serves(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    model = numbered(20)
    models_in(tmp_path / "store", model.topic).save(model)
    for path in (tmp_path / "store").rglob("*"):
        os.chown(path, 10001, 10001)
    with oci.built("--target", "sidecar") as small:
        added = sum(path.lstat().st_size for path in (small.root / "opt/streampca").rglob("*") if path.is_file())
        print(f"{added / 1e6:.0f} MB beside the base")  # noqa: T201 - with pytest -s
        assert added < 95e6  # with the 125 MB of Python's slim image less than 220
        environment = {"STREAMPCA_TOPIC": model.topic, "STREAMPCA_PORT": str(port), "HEALTHCHECK_URL": f"{url}/healthz"}
        command = [*small.config["Entrypoint"], *small.config["Cmd"]]
        with oci.running(small, command, environment, memory_limit("sidecar"), tmp_path) as sidecar:
            wait_while_running(sidecar, lambda: is_ready(f"{url}/readyz"), "a ready sidecar")
            answer = httpx.post(f"{url}/v1/project", json={"vectors": [[1.0] * model.model.dimensions]}, timeout=10)
            assert answer.json()["version"] == 20
            assert sidecar.execute(*small.config["Healthcheck"]["Test"][1:]) == 0
            assert sidecar.stop() == 0, sidecar.log.read_text()


def test_commands_are_confined(image: oci.Image, tmp_path: Path) -> None:
    places = ["/", "/etc", "/opt/streampca", "/opt/streampca/numba", "/usr", "/var/lib/streampca"]
    look = f"import os; print(os.getpid(), os.geteuid(), [p for p in {places} if os.access(p, os.W_OK)])"
    assert output_of(image, tmp_path, "python", "-c", look) == "1 10001 ['/var/lib/streampca']\n"
    assert "CapEff:\t0000000000000000" in output_of(image, tmp_path, "cat", "/proc/self/status")


def test_kernels_compiled_by_the_build_are_loaded(image: oci.Image, tmp_path: Path) -> None:
    compiling = ("python", "-I", "-m", "streampca.pca.compilation")
    output = output_of(image, tmp_path, *compiling, NUMBA_DEBUG_CACHE="1")
    assert "data loaded from" in output
    assert "data saved to" not in output


def service(
    image: oci.Image, name: str, folder: Path, environment: dict[str, str], *more: str
) -> AbstractContextManager[oci.Container]:
    """A service of docker-compose.yml in this environment, with its limit of memory."""
    command = [*image.config["Entrypoint"], *files.services()[name]["command"], *more]
    return oci.running(image, command, environment, memory_limit(name), folder)


def create_topics(image: oci.Image, broker: Broker, topic: str, folder: Path, *more: str) -> None:
    """Create a topic and its dead-letter topic, as the service `topics` does."""
    create = [*image.config["Entrypoint"], "create-topics", "--partitions", "2", *more]
    with oci.running(image, create, environment_of_services(broker, topic), memory_limit("worker"), folder) as topics:
        assert topics.wait() == 0, topics.log.read_text()


@pytest.mark.broker
@pytest.mark.parametrize("processor", [{}, {"NUMBA_CPU_NAME": "generic"}], ids=["kernels loaded", "kernels compiled"])
def test_worker_sidecar_and_producer_work_together_within_the_shipped_memory(
    image: oci.Image, broker: Broker, topic: str, tmp_path: Path, processor: dict[str, str]
) -> None:
    ports = free_ports(2)
    addresses = {"worker": f"http://127.0.0.1:{ports[0]}", "sidecar": f"http://127.0.0.1:{ports[1]}"}

    def start(name: str) -> AbstractContextManager[oci.Container]:
        environment = processor | {
            "STREAMPCA_METRICS_PORT": str(ports[0]),
            "STREAMPCA_PORT": str(ports[1]),
            "HEALTHCHECK_URL": f"{addresses.get(name)}/healthz",
        }  # fmt: skip
        return service(image, name, tmp_path, environment_of_services(broker, topic) | environment)

    create_topics(image, broker, topic, tmp_path)
    with start("worker") as worker, start("producer") as producer, start("sidecar") as sidecar:
        models = models_in(tmp_path / "store", topic)
        wait_while_running(worker, lambda: models.newest() is not None, "a model", 180)
        wait_while_running(sidecar, lambda: is_ready(f"{addresses['sidecar']}/readyz"), "a ready sidecar")
        wait_while_running(worker, lambda: is_ready(f"{addresses['worker']}/readyz"), "a ready worker")
        check = image.config["Healthcheck"]["Test"][1:]
        assert [worker.execute(*check), sidecar.execute(*check)] == [0, 0]
        model = httpx.get(f"{addresses['sidecar']}/v1/model", timeout=10).json()
        assert (model["dimensions"], model["components"]) == (128, 8)
        containers = {"worker": worker, "sidecar": sidecar, "producer": producer}
        peaks = {name: container.resident_mib("VmHWM") for name, container in containers.items()}
        print({name: f"{peak:.0f} MiB" for name, peak in peaks.items()})  # noqa: T201 - with pytest -s
        assert all(peak < 0.8 * memory_limit(name) / 2**20 for name, peak in peaks.items()), peaks
        assert producer.stop() == 128 + 15
        assert sidecar.stop() == 0, sidecar.log.read_text()
        assert worker.stop() == 0, worker.log.read_text()
        assert "worker ended" in worker.log.read_text()
    assert sum(broker.end_offsets(topic).values()) > 0
    assert sum(broker.end_offsets(f"{topic}-dead").values()) == 0


@pytest.mark.broker
@pytest.mark.timeout(1800)
def test_no_role_grows_in_ten_minutes_at_full_speed(
    image: oci.Image, broker: Broker, topic: str, tmp_path: Path
) -> None:
    for client in ("kafka-python", "confluent"):  # an output topic belongs to one group
        create_topics(image, broker, topic, tmp_path, "--output-topic", f"{topic}-{client}")
    roles = {"worker": "", "sidecar": "", "transform with kafka-python": "kafka-python", "transform": "confluent"}
    with ExitStack() as stack:
        containers, urls = dict[str, oci.Container](), dict[str, str]()
        for (role, client), port in zip(roles.items(), free_ports(len(roles)), strict=True):
            environment = environment_of_services(broker, topic) | {
                "STREAMPCA_OUTPUT_TOPIC": f"{topic}-{client}",
                "STREAMPCA_TRANSFORM_GROUP_ID": f"{topic}-{client}",
                "STREAMPCA_KAFKA_CLIENT": client or "confluent",
                "STREAMPCA_METRICS_PORT": str(port),
                "STREAMPCA_PORT": str(port),
            }  # fmt: skip
            containers[role] = stack.enter_context(service(image, role.split()[0], tmp_path, environment))
            urls[role] = f"http://127.0.0.1:{port}"
        busy = service(image, "producer", tmp_path, environment_of_services(broker, topic), "--rate", "20000")
        stack.enter_context(busy)
        for role, container in containers.items():
            wait_while_running(container, lambda url=urls[role]: is_ready(f"{url}/readyz"), f"{role} ready", 240)  # type: ignore[misc]
        vectors = {"vectors": np.random.default_rng(0).standard_normal((256, 128)).tolist()}
        project = partial(httpx.post, f"{urls['sidecar']}/v1/project", json=vectors, timeout=60)
        stack.enter_context(every(0.0, lambda: project().raise_for_status()))
        samples = []
        for _ in range(2):
            time.sleep(300)
            samples.append({role: container.resident_mib() for role, container in containers.items()})
    print(samples)  # noqa: T201 - with pytest -s
    assert all(samples[1][role] - samples[0][role] <= 5 for role in roles), samples
