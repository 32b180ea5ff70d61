"""Compose file and Dockerfile are valid, and everything they refer to exists."""

import importlib.resources
import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kafka.admin import ConfigResource, ConfigResourceType

from streampca.version import __version__
from tests.deploy import files, services
from tests.deploy.commands import PORTS, effective_settings
from tests.kafka_broker import Broker
from tests.s3_process import VERSION as S3_VERSION

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
    outcome = subprocess.run([lint, files.DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (outcome.returncode, outcome.stdout) == (0, ""), outcome.stderr


def test_compiled_kernels_do_not_depend_on_the_processor_of_the_build() -> None:
    """numba's cache key contains the baseline and no feature of this machine's processor."""
    look = "from numba.core.registry import cpu_target; print(cpu_target.target_context.codegen().magic_tuple()[1:])"
    baseline = files.baseline(files.architecture())
    found = subprocess.run(
        [sys.executable, "-c", look], env=baseline, capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == f"('{baseline['NUMBA_CPU_NAME']}', '')\n"


def test_images_have_the_version_of_the_package() -> None:
    named = {service["image"] for service in files.streampca_services().values()}
    assert named == {f"streampca:{__version__}"}
    assert f"streampca:{__version__}" in files.DOCKERFILE.read_text()
    assert f'image.version="{__version__}"' in files.last_argument("LABEL")


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
    for name in ("topics", "producer"):
        assert files.streampca_services()[name]["healthcheck"] == {"disable": True}
    script = json.loads(files.last_argument("HEALTHCHECK").partition("CMD ")[2])[-1]
    assert any(rest == f"docker/healthcheck.py {script}" for name, rest in files.stages()[-2] if name == "COPY")


def test_the_stack_runs_with_a_store_in_a_bucket_as_well(
    environment_of_the_docs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile starts the server that the tests use, and the variable of docs/deployment.md selects its bucket."""
    profile, place = environment_of_the_docs["COMPOSE_PROFILES"], environment_of_the_docs["STREAMPCA_STORE"]
    server = files.services()["objects"]
    assert server["profiles"] == [profile]
    assert server["image"] == f"adobe/s3mock:{S3_VERSION}"
    bucket = server["environment"]["COM_ADOBE_TESTING_S3MOCK_STORE_INITIALBUCKETS"]
    assert place == f"s3://{bucket}"
    assert f"/{bucket}?" in server["healthcheck"]["test"][-1]
    for name in ("worker", "sidecar"):
        environment = COMMAND_LINES[name][1] | {"STREAMPCA_STORE": place}
        assert effective_settings(COMMAND_LINES[name][0], environment, monkeypatch)["store"] == place
        assert environment["AWS_ENDPOINT_URL"] == "http://objects:9090"


@pytest.fixture
def environment_of_the_docs() -> dict[str, str]:
    page = (files.ROOT / "docs" / "deployment.md").read_text()
    return dict(re.findall(r"^(COMPOSE_PROFILES|STREAMPCA_STORE)=(\S+)$", page, re.MULTILINE))


def test_a_worker_that_compiles_stays_within_its_memory_limits() -> None:
    """The peaks are those of docs/deployment.md; `make image-test` measures one of them."""
    page = (files.ROOT / "docs" / "deployment.md").read_text()
    table = re.findall(r"^\| (?:raw float32|Arrow, \d+ vectors each) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    peak = max(int(cell) for row in table for cell in row)
    chart = yaml.safe_load((files.ROOT / "docker" / "helm" / "streampca" / "values.yaml").read_text())
    assert chart["worker"]["resources"]["limits"]["memory"] == "768Mi"
    assert services.memory_limit("worker") == 768 << 20
    assert peak < 0.75 * 768


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


def provisioned(folder: Path, kind: str, key: str) -> list[dict[str, Any]]:
    return [found for path in (folder / kind).glob("*.y*ml") for found in yaml.safe_load(path.read_text())[key]]


def test_grafana_finds_its_dashboards_and_data_source() -> None:
    targets = {m.split(":")[1]: files.ROOT / m.split(":")[0] for m in files.services()["grafana"]["volumes"]}
    folder = targets["/etc/grafana/provisioning"]
    (provider,) = provisioned(folder, "dashboards", "providers")
    assert list(targets[provider["options"]["path"]].glob("*.json"))
    (source,) = provisioned(folder, "datasources", "datasources")
    assert source["url"] == "http://prometheus:9090"


def test_deployment_docs_list_the_variables_and_services() -> None:
    page = (files.ROOT / "docs" / "deployment.md").read_text()
    requested = dict(re.findall(r"(?<!\$)\$\{(\w+):-([^}]*)\}", files.COMPOSE.read_text()))
    assert dict(re.findall(r"^\| `([A-Z_]+)` \| `([^`]+)` \|$", page, re.MULTILINE)) == requested
    assert set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)) == set(files.services())
    for port in (port for service in files.services().values() for port in service.get("ports", [])):
        assert port.rpartition(":")[0] in page
