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
from tests.deploy import files, manifests, services
from tests.deploy.commands import PORTS, effective_settings
from tests.kafka_broker import Broker
from tests.s3_process import VERSION as S3_VERSION

STAGE_OF_ARCHITECTURE = "${TARGETARCH:-amd64}"  # in FROM
IMAGES = sorted({service["image"] for service in files.services().values()})


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


def test_bases_and_images_are_pinned() -> None:
    bases = [rest.split()[0] for stage in files.stages() for name, rest in stage if name == "FROM"]
    for image in [*(base for base in bases if base != STAGE_OF_ARCHITECTURE), *IMAGES]:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+[\w.-]*", image), image


def test_kernels_are_compiled_and_loaded_for_the_same_processor_baseline() -> None:
    """numba loads only code compiled for the same processor, so both stages have the same base."""
    *bases, builder, image = [stage[0][1] for stage in files.stages()]
    assert [base.partition(" AS ")[2] for base in bases] == ["amd64", "arm64"]
    assert (builder, image) == (f"{STAGE_OF_ARCHITECTURE} AS builder", STAGE_OF_ARCHITECTURE)
    assert files.baseline("amd64") == {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
    assert files.baseline("arm64") == {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}


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


def test_default_ports_are_free_on_a_host_with_kafka_and_prometheus() -> None:
    """Prometheus's exporters share 9100 to 9999 (node_exporter has 9100, kafka_exporter 9308) and 10,000 upwards."""
    zookeeper, schema_registry, rest, connect, ksqldb, consoles = 2181, 8081, 8082, 8083, 8088, (8080, 9000, 9021)
    taken = {zookeeper, schema_registry, rest, connect, ksqldb, *consoles, *range(9090, 65536)}
    assert not taken & set(PORTS.values())


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


def test_one_store_is_mounted_where_the_image_expects_it() -> None:
    store = files.image_environment()["STREAMPCA_STORE"]
    assert f" {store}" in files.last_argument("RUN")
    mounts = {name: service.get("volumes", []) for name, service in files.streampca_services().items()}
    writable = [f"store:{store}"]
    assert mounts == {
        "worker": writable, "sidecar": [f"store:{store}:ro"], "transform": writable, "topics": [], "producer": [],
    }  # fmt: skip


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


def test_every_container_is_confined() -> None:
    for name, service in files.services().items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
        # Apache's image writes its configuration at startup.
        assert service.get("read_only", False) is not service["image"].startswith("apache/kafka"), name


def test_a_worker_that_compiles_stays_within_its_memory_limits() -> None:
    """The peaks are those of docs/deployment.md; `make image-test` measures one of them."""
    page = (files.ROOT / "docs" / "deployment.md").read_text()
    table = re.findall(r"^\| (?:raw float32|Arrow, \d+ vectors each) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    peak = max(int(cell) for row in table for cell in row)
    found = manifests.containers(manifests.built("object-store")).values()
    (shipped,) = [c["resources"]["limits"]["memory"] for c in found if c["args"] == ["worker"]]
    assert shipped == "768Mi"
    assert services.memory_limit("worker") == 768 << 20
    assert peak < 0.75 * 768


@pytest.mark.broker
def test_the_brokers_settings_exist(broker: Broker) -> None:
    """Apache's image translates KAFKA_NODE_ID to node.id; the broker would ignore a misspelt name."""
    requested = ConfigResource(ConfigResourceType.BROKER, "1", configs=None)
    known = broker.admin.describe_configs([requested], config_filter="all")["broker"]["1"].keys()
    names = [name for name in files.services()["kafka"]["environment"] if name != "KAFKA_HEAP_OPTS"]
    assert [name for name in names if name.removeprefix("KAFKA_").lower().replace("_", ".") not in known] == []


def test_workers_can_be_scaled() -> None:
    assert not {"container_name", "hostname", "ports"} & files.services()["worker"].keys()


def test_dependencies_wait_until_services_are_healthy_or_completed() -> None:
    found = files.services()
    waits = {
        (name, other): dependency["condition"].removeprefix("service_")
        for name, service in found.items()
        for other, dependency in service.get("depends_on", {}).items()
    }
    assert waits == {
        ("topics", "kafka"): "healthy",
        ("worker", "topics"): "completed_successfully",
        ("worker", "objects"): "healthy",
        ("producer", "topics"): "completed_successfully",
        ("sidecar", "worker"): "healthy",
        ("transform", "worker"): "healthy",
        ("grafana", "prometheus"): "healthy",
    }
    assert found["topics"]["restart"] == "no"
    assert {name for name, service in found.items() if "profiles" in service} == {"objects", "transform"}
    assert found["worker"]["depends_on"]["objects"]["required"] is False  # without the profile there is no such service
    checked = {name for name, service in found.items() if "test" in service.get("healthcheck", {})}
    assert {other for (_, other), condition in waits.items() if condition == "healthy"} <= checked | set(
        files.streampca_services()
    )


def test_named_volumes_are_declared_and_bind_mounts_exist() -> None:
    declared = files.compose()["volumes"].keys()
    used = {mount.split(":")[0] for service in files.services().values() for mount in service.get("volumes", [])}
    assert {name for name in used if not name.startswith(".")} == declared
    assert [name for name in used if name.startswith(".") and not (files.ROOT / name).is_dir()] == []


def test_ports_are_local_and_no_file_contains_a_secret() -> None:
    for service in files.services().values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        names = [str(name) for name in service.get("environment", {})]
        assert not [name for name in names if re.search("PASSWORD|SECRET|TOKEN|_KEY", name)]


def test_prometheus_scrapes_existing_services() -> None:
    mounts = dict(m.split(":")[:2] for m in files.services()["prometheus"]["volumes"])
    (folder,) = [source for source in mounts if source.startswith(".")]
    (option,) = [a for a in files.services()["prometheus"]["command"] if a.startswith("--config.file=")]
    path = files.ROOT / folder / Path(option.partition("=")[2]).relative_to(mounts[folder])
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


def test_the_image_copies_what_the_build_context_allows() -> None:
    ignore = (files.ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    copied = [
        source
        for stage in files.stages()
        for instruction, rest in stage
        if instruction == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert sorted(copied) == sorted(allowed)
    for source in copied:
        assert (files.ROOT / source).exists()


def test_an_edit_of_the_code_reinstalls_nothing() -> None:
    """An engine repeats a stage from the first instruction whose files have changed."""
    builder = files.stages()[-2]
    (code,) = [i for i, (name, rest) in enumerate(builder) if name == "COPY" and rest.startswith("streampca ")]
    (dependencies,) = [i for i, (name, rest) in enumerate(builder) if name == "RUN" and "requirements.lock" in rest]
    assert dependencies < code
    for name, rest in builder[code:]:
        if name == "RUN" and "install" in rest:
            assert "--no-deps --no-index" in rest
    for name, rest in builder[:code]:
        if name == "RUN":
            assert rest.count(" install ") == rest.count("--require-hashes")


def test_signals_reach_python() -> None:
    assert json.loads(files.last_argument("ENTRYPOINT")) == ["streampca"]
    assert json.loads(files.last_argument("CMD")) == ["worker"]
    assert files.last_argument("STOPSIGNAL") == "SIGTERM"
    assert set(files.last_argument("EXPOSE").split()) == {str(port) for port in PORTS.values()}


def test_deployment_docs_list_the_variables_and_services() -> None:
    page = (files.ROOT / "docs" / "deployment.md").read_text()
    requested = dict(re.findall(r"(?<!\$)\$\{(\w+):-([^}]*)\}", files.COMPOSE.read_text()))
    assert dict(re.findall(r"^\| `([A-Z_]+)` \| `([^`]+)` \|$", page, re.MULTILINE)) == requested
    assert set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)) == set(files.services())
    for port in (port for service in files.services().values() for port in service.get("ports", [])):
        assert port.rpartition(":")[0] in page
    named = set(re.findall(r"^\| `([\w/-]+/)` \|", page, re.MULTILINE))
    assert named == {
        f"{path.parent.relative_to(manifests.FOLDER)}/" for path in manifests.FOLDER.rglob("kustomization.yaml")
    }
