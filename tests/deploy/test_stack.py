"""Compose file, manifests and Dockerfile are valid, and everything they refer to exists."""

import importlib.resources
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kafka.admin import ConfigResource, ConfigResourceType
from typer.main import get_command

from streampca.api.app import create_app
from streampca.cli import app as command_line
from streampca.settings import CreateTopicsSettings, ProduceSettings, ServeSettings, WorkerSettings
from streampca.settings.base import Settings
from streampca.stores.memory import MemoryStore
from streampca.version import __version__
from streampca.worker.listeners import health
from tests.deploy import files, services
from tests.kafka_broker import Broker

KINDS: dict[str, type[Settings]] = {
    "worker": WorkerSettings, "serve": ServeSettings, "produce": ProduceSettings, "create-topics": CreateTopicsSettings,
}  # fmt: skip
PORTS = {
    "worker": WorkerSettings.model_fields["worker_port"].default,
    "serve": ServeSettings.model_fields["port"].default,
}
STAGE_OF_ARCHITECTURE = "${TARGETARCH:-amd64}"  # in FROM
IMAGES = sorted({service["image"] for service in files.services().values()})


def command_lines() -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Every streampca command: its service, its arguments, and its environment except the image's."""
    for name, service in files.streampca_services().items():
        yield name, [str(a) for a in service["command"]], {n: str(v) for n, v in service["environment"].items()}
    (settings,) = (o["data"] for o in files.objects() if o["kind"] == "ConfigMap")
    for name, container in files.containers().items():
        yield name, container["args"], settings


COMMAND_LINES = list(command_lines())
for_every_command_line = pytest.mark.parametrize(
    ("arguments", "environment"), [line[1:] for line in COMMAND_LINES], ids=[name for name, *_ in COMMAND_LINES]
)
SETTINGS = {f"STREAMPCA_{name.upper()}" for kind in KINDS.values() for name in kind.model_fields}


def test_the_compose_file_matches_the_specification() -> None:
    # check-jsonschema ships the schema for its own command.
    schema = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
    assert [error.message for error in validator.iter_errors(files.compose())] == []
    broken = {**files.compose(), "services": {"worker": {"imagine": "streampca"}}}
    assert list(validator.iter_errors(broken))


@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_the_manifests_match_the_api(version: str) -> None:
    known = [o for o in files.objects() if not o["apiVersion"].startswith("monitoring.")]  # in test_kubernetes
    assert {o["kind"] for o in known} == {
        "ConfigMap", "PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    for found in known:
        kubernetes_validate.validate(found, version, strict=True)
    broken = {**known[0], "date": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_every_manifest_is_listed() -> None:
    listed = yaml.safe_load((files.KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(path.name for path in files.KUBERNETES.iterdir())


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
    named = {service["image"] for service in files.streampca_services().values()} | {
        c["image"] for c in files.containers().values()
    }
    assert named == {f"streampca:{__version__}"}
    assert f"streampca:{__version__}" in files.DOCKERFILE.read_text()
    assert f'image.version="{__version__}"' in files.last_argument("LABEL")


@for_every_command_line
def test_commands_and_their_settings_are_valid(
    arguments: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *options = arguments
    command = get_command(command_line).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, list(options), resilient_parsing=False)  # raises if an option is unknown
    for variable, value in {**files.image_environment(), **environment}.items():
        if variable.startswith("STREAMPCA_"):
            assert variable in SETTINGS
            monkeypatch.setenv(variable, value)
    effective, mistakes = KINDS[name].explain()
    assert mistakes == []
    assert {e.name: e.value for e in effective}["topic"] == "readings"


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
    }
    for name in ("topics", "producer"):
        assert files.streampca_services()[name]["healthcheck"] == {"disable": True}
    script = json.loads(files.last_argument("HEALTHCHECK").partition("CMD ")[2])[-1]
    assert any(rest == f"docker/healthcheck.py {script}" for name, rest in files.stages()[-2] if name == "COPY")


def paths_served() -> dict[str, set[str]]:
    sidecar = create_app(MemoryStore(), ServeSettings(topic="t"))
    worker = {p for p in ("/metrics", "/healthz", "/readyz") if f'"{p}"' in Path(health.__file__).read_text()}
    return {"worker": worker, "serve": set(sidecar.openapi()["paths"])}


def test_kubernetes_probes_and_ports_exist() -> None:
    served = paths_served()
    for container in files.containers().values():
        (port,) = container["ports"]
        (command,) = container["args"]
        assert port["containerPort"] == PORTS[command]
        probes = [
            container[p]["httpGet"] for p in ("livenessProbe", "readinessProbe", "startupProbe") if p in container
        ]
        assert len(probes) >= 2
        for probe in probes:
            assert probe["port"] == port["name"]
            assert probe["path"] in served[command]


def test_kubernetes_services_and_monitors_select_their_pods() -> None:
    found = files.objects()
    pods = [o["spec"]["template"] for o in found if o["kind"] == "Deployment"]
    labels = [pod["metadata"]["labels"].items() for pod in pods]
    offered = {o["metadata"]["name"]: o for o in found if o["kind"] == "Service"}
    assert len(offered) == len(pods) == 2
    for service in offered.values():
        (port,) = service["spec"]["ports"]
        (pod,) = [p for p, own in zip(pods, labels, strict=True) if service["spec"]["selector"].items() <= own]
        (theirs,) = pod["spec"]["containers"][0]["ports"]
        assert (port["targetPort"], port["port"]) == (theirs["name"], theirs["containerPort"])
    for monitor in (o for o in found if o["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [s for s in offered.values() if wanted <= s["metadata"]["labels"].items()]
        assert {e["port"] for e in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}
        assert {e["path"] for e in monitor["spec"]["endpoints"]} == {"/metrics"}
        assert set(monitor["spec"]) == {"selector", "endpoints"}
    for budget in (o for o in found if o["kind"] == "PodDisruptionBudget"):
        assert any(budget["spec"]["selector"]["matchLabels"].items() <= own for own in labels)


def test_one_store_is_mounted_where_the_image_expects_it() -> None:
    store = files.image_environment()["STREAMPCA_STORE"]
    assert f" {store}" in files.last_argument("RUN")
    mounts = {name: service.get("volumes", []) for name, service in files.streampca_services().items()}
    assert mounts == {"worker": [f"store:{store}"], "sidecar": [f"store:{store}:ro"], "topics": [], "producer": []}
    for container in files.containers().values():
        assert store in {m["mountPath"] for m in container["volumeMounts"]}
        claims = [v["persistentVolumeClaim"]["claimName"] for v in container["pod"]["volumes"] if v["name"] == "store"]
        assert claims == ["streampca-store"]
    (claim,) = [o for o in files.objects() if o["kind"] == "PersistentVolumeClaim"]
    assert claim["metadata"]["name"] == "streampca-store"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_every_container_is_confined() -> None:
    uid, gid = map(int, files.last_argument("USER").split(":"))
    for name, service in files.services().items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
        # Apache's image writes its configuration at startup.
        assert service.get("read_only", False) is not service["image"].startswith("apache/kafka"), name
    for container in files.containers().values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        pod = container["pod"]["securityContext"]
        assert pod["runAsNonRoot"]
        assert (pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]) == (uid, gid, gid)
        # Otherwise a Service named streampca would set STREAMPCA_PORT to a URL.
        assert container["pod"]["enableServiceLinks"] is False
        assert "memory" in container["resources"]["limits"]


def test_a_worker_that_compiles_stays_within_its_memory_limits() -> None:
    """The peaks are those of docs/deployment.md; `make image-test` measures one of them."""
    page = (files.ROOT / "docs" / "deployment.md").read_text()
    table = re.findall(r"^\| (?:raw float32|Arrow, \d+ vectors each) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    peak = max(int(cell) for row in table for cell in row)
    (shipped,) = [c["resources"]["limits"]["memory"] for c in files.containers().values() if c["args"] == ["worker"]]
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
        ("producer", "topics"): "completed_successfully",
        ("sidecar", "worker"): "healthy",
        ("grafana", "prometheus"): "healthy",
    }
    assert found["topics"]["restart"] == "no"
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
    assert requested == {f"worker:{PORTS['worker']}", f"sidecar:{PORTS['serve']}", "localhost:9090"}


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
    manifests = set(re.findall(r"^\| `(\w+\.yaml)` \|", page, re.MULTILINE))
    assert manifests == {path.name for path in files.KUBERNETES.iterdir()} - {"kustomization.yaml"}
