"""Compose file and Dockerfile are valid, and everything they refer to exists."""

import importlib.resources
import json
import re
import sys
import sysconfig
from pathlib import Path

import jsonschema
import pytest
import yaml
from kafka.admin import ConfigResource, ConfigResourceType

from streampca.stores.choice import open_store
from streampca.version import __version__
from tests.command_line import succeeded
from tests.deploy import files
from tests.deploy.commands import PORTS, effective_settings
from tests.java_server import available
from tests.kafka_broker import Broker
from tests.s3_process import VERSION as S3_VERSION, S3Process

COMMAND_LINES = {
    name: ([str(a) for a in service["command"]], {n: str(v) for n, v in service["environment"].items()})
    for name, service in files.streampca_services().items()
}


def test_the_compose_file_matches_the_specification() -> None:
    # check-jsonschema ships the schema for its own command.
    schema = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
    assert [error.message for error in validator.iter_errors(files.compose())] == []
    broken = {**files.compose(), "services": {"worker": {"imagine": "streampca"}}}
    assert list(validator.iter_errors(broken))


def test_hadolint_accepts_the_dockerfile() -> None:
    lint = Path(sysconfig.get_path("scripts")) / "hadolint"
    assert succeeded(lint, files.DOCKERFILE) == ""


def test_compiled_kernels_do_not_depend_on_the_processor_of_the_build() -> None:
    """numba's cache key contains the baseline and no feature of this machine's processor."""
    look = "from numba.core.registry import cpu_target; print(cpu_target.target_context.codegen().magic_tuple()[1:])"
    baseline = files.baseline()
    assert succeeded(sys.executable, "-c", look, env=baseline) == f"('{baseline['NUMBA_CPU_NAME']}', '')\n"


def test_images_have_the_version_of_the_package() -> None:
    named = {service["image"] for service in files.streampca_services().values()}
    assert named == {f"streampca:{__version__}"}
    assert f"streampca:{__version__}" in files.DOCKERFILE.read_text()
    labels = " ".join(rest for stage in files.stages() for name, rest in stage if name == "LABEL")
    assert f'image.version="{__version__}"' in labels
    assert "image.source=" in labels
    assert "image.revision=" in labels


@pytest.mark.parametrize(("arguments", "environment"), COMMAND_LINES.values(), ids=COMMAND_LINES)
def test_commands_and_their_settings_are_valid(
    arguments: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert effective_settings(arguments, environment, monkeypatch)["topic"] == "readings"


def test_health_checks_request_existing_urls() -> None:
    urls = {
        name: {**files.image_environment(), **service["environment"]}["HEALTHCHECK_URL"]
        for name, service in files.streampca_services().items()
        if "healthcheck" not in service
    }
    assert urls == {
        "worker": f"http://127.0.0.1:{PORTS['worker']}/healthz",
        "sidecar": f"http://127.0.0.1:{PORTS['serve']}/healthz",
        "transform": f"http://127.0.0.1:{PORTS['transform']}/healthz",
    }


@pytest.mark.parametrize("name", ["worker", "sidecar"])
def test_the_stack_runs_with_a_store_in_a_bucket_as_well(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    server = files.services()["objects"]
    assert server["image"] == f"adobe/s3mock:{S3_VERSION}"  # the one of the tests
    place = f"s3://{server['environment']['COM_ADOBE_TESTING_S3MOCK_STORE_INITIALBUCKETS']}"
    assert f"STREAMPCA_STORE={place}" in (files.ROOT / "docs" / "deployment.md").read_text()
    command, environment = COMMAND_LINES[name]
    assert effective_settings(command, environment | {"STREAMPCA_STORE": place}, monkeypatch)["store"] == place


@pytest.mark.broker
def test_the_brokers_settings_exist(broker: Broker) -> None:
    """Apache's image translates KAFKA_NODE_ID to node.id; the broker would ignore a misspelt name."""
    requested = ConfigResource(ConfigResourceType.BROKER, "1", configs=None)
    known = broker.admin.describe_configs([requested], config_filter="all")["broker"]["1"].keys()
    names = [name for name in files.services()["kafka"]["environment"] if name != "KAFKA_HEAP_OPTS"]
    assert [name for name in names if name.removeprefix("KAFKA_").lower().replace("_", ".") not in known] == []


def test_files_that_are_mounted_exist_and_ports_are_local() -> None:
    for service in files.services().values():
        mounted = [mount.split(":")[0] for mount in service.get("volumes", [])]
        assert [path for path in mounted if path.startswith(".") and not (files.ROOT / path).exists()] == []
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_prometheus_scrapes_existing_services() -> None:
    path = files.ROOT / "docker" / "prometheus" / "prometheus.yml"
    requested = {
        f"{name}:{found['port']}"
        for job in yaml.safe_load(path.read_text())["scrape_configs"]
        for found in job.get("dns_sd_configs", [])
        for name in found["names"]
    } | set(re.findall(r'"([\w-]+:\d+)"', path.read_text()))
    assert requested == {
        f"worker:{PORTS['worker']}",
        f"sidecar:{PORTS['serve']}",
        f"transform:{PORTS['transform']}",
        "localhost:9090",
    }


OBJECTS = files.services()["objects"]


class ComposedServer(S3Process):
    """Configured by environment variables alone, but for the ports."""

    def _arguments(self) -> list[str]:
        ports = [f"--com.adobe.testing.s3mock.http-port={self.port}", "--server.port=0", "--server.address=127.0.0.1"]
        return ["-XX:+UseSerialGC", "-jar", str(self._program), *ports]

    def _probe(self) -> str:
        url: str = OBJECTS["healthcheck"]["test"][-1]
        return url.replace("9090", str(self.port))


@pytest.mark.broker
@pytest.mark.slow
def test_workers_can_use_it_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OBJECTS["environment"].items():
        monkeypatch.setenv(name, str(value).replace("/s3mockroot", str(tmp_path / "objects")))
    with available(lambda: ComposedServer(tmp_path), "S3 server") as server:
        for name, value in files.services()["worker"]["environment"].items():
            if name.startswith("AWS_"):
                monkeypatch.setenv(name, value.replace("http://objects:9090", server.endpoint))
        bucket = OBJECTS["environment"]["COM_ADOBE_TESTING_S3MOCK_STORE_INITIALBUCKETS"]
        store = open_store(f"s3://{bucket}")
        store.write("topic/model", b"bytes")
        assert store.read("topic/model") == b"bytes"
    assert any(path.read_bytes() == b"bytes" for path in (tmp_path / "objects").rglob("*") if path.is_file())
