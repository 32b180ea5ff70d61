"""The Kubernetes manifests are valid, and everything that they refer to exists."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from streampca.version import __version__
from tests.deploy import files, manifests
from tests.deploy.commands import PORTS, effective_settings, paths_served
from tests.deploy.manifests import Object, of_kind

EVERYTHING = {overlay: manifests.built(overlay, *manifests.components_of(overlay)) for overlay in manifests.OVERLAYS}
KNOWN_KINDS = {
    "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount", "StatefulSet",
}  # fmt: skip
FOR_OPERATORS = {"PrometheusRule", "ScaledObject", "ServiceMonitor"}
STORE = files.image_environment()["STREAMPCA_STORE"]

for_each_overlay = pytest.mark.parametrize("found", EVERYTHING.values(), ids=EVERYTHING.keys())


def settings_of(found: list[Object]) -> dict[str, str]:
    """The data of the ConfigMap."""
    (settings,) = of_kind(found, "ConfigMap")
    data: dict[str, str] = settings["data"]
    return data


def templates(found: list[Object]) -> list[Object]:
    """The pods' templates."""
    return [o["spec"]["template"] for o in of_kind(found, *manifests.WORKLOADS)]


@pytest.mark.parametrize("version", ["1.28", "1.34"])
@for_each_overlay
def test_the_manifests_match_the_api(found: list[Object], version: str) -> None:
    known = [o for o in found if o["kind"] not in FOR_OPERATORS]  # in test_operators
    claims = {"PersistentVolumeClaim"} if found is EVERYTHING["shared-disk"] else set()
    assert {o["kind"] for o in known} == KNOWN_KINDS | claims
    for o in known:
        kubernetes_validate.validate(o, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**known[0], "date": {}}, version, strict=True)


def test_overlays_without_components_need_no_operator() -> None:
    for overlay in manifests.OVERLAYS:
        for components in ((), (manifests.transform_of(overlay),)):
            kinds = {o["kind"] for o in manifests.built(overlay, *components)}
            assert kinds >= KNOWN_KINDS
            assert not kinds & FOR_OPERATORS


def test_every_manifest_is_listed() -> None:
    for file in manifests.FOLDER.rglob("kustomization.yaml"):
        used = {path for path in manifests.listed(file.parent) if path.is_file()}
        assert used | {file} == set(file.parent.iterdir())
    folders = {f"{group}/{name}" for group in ("overlays", "components") for name in names_in(group)} | {"base"}
    assert folders == {str(f.parent.relative_to(manifests.FOLDER)) for f in manifests.FOLDER.rglob("kustom*")}
    assert names_in("overlays") == set(manifests.OVERLAYS)
    offered = {name for overlay in manifests.OVERLAYS for name in manifests.components_of(overlay)}
    assert names_in("components") == offered | {"transform"}  # which the two for the overlays include


def names_in(folder: str) -> set[str]:
    return {path.name for path in (manifests.FOLDER / folder).iterdir()}


def test_components_that_the_overlays_offer_exist() -> None:
    for overlay in manifests.OVERLAYS:
        folder = manifests.FOLDER / "overlays" / overlay
        text = (folder / "kustomization.yaml").read_text()
        offered = yaml.safe_load(text.replace("# components:", "components:").replace("#   -", "  -"))["components"]
        assert {(folder / path).resolve().name for path in offered} == set(manifests.components_of(overlay))


@for_each_overlay
def test_images_have_the_version_of_the_package(found: list[Object]) -> None:
    assert {c["image"] for c in manifests.containers(found).values()} == {f"streampca:{__version__}"}


@for_each_overlay
def test_commands_and_their_settings_are_valid(found: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    data = settings_of(found)
    assert all(isinstance(value, str) for value in data.values())
    assert all(name.startswith(("STREAMPCA_", "AWS_")) for name in data)
    for container in manifests.containers(found).values():
        effective = effective_settings(container["args"], data | variables(container), monkeypatch)
        assert effective["topic"] == "readings"
        assert effective.get("output_topic", "readings-projected") == "readings-projected"
        assert effective["store"] == data["STREAMPCA_STORE"]


def variables(container: Object) -> dict[str, str]:
    """The container's own variables; those that are fields of the pod have an example."""
    return {
        v["name"]: f"streampca-{container['name']}-0" if "valueFrom" in v else v["value"]
        for v in container.get("env", [])
    }


@for_each_overlay
def test_secrets_of_the_brokers_are_for_their_clients_alone(found: list[Object]) -> None:
    workers, transforms, sidecars = (
        [source for c in manifests.containers(found).values() if c["args"] == [command] for source in c["envFrom"]]
        for command in ("worker", "transform", "serve")
    )
    store = {"secretRef": {"name": "streampca-store", "optional": True}}
    assert workers == [
        {"configMapRef": {"name": "streampca"}},
        {"secretRef": {"name": "streampca", "optional": True}},
        store,
    ]
    assert transforms == workers
    assert sidecars == [workers[0], store]


@for_each_overlay
def test_probes_and_ports_exist(found: list[Object]) -> None:
    served = paths_served()
    for container in manifests.containers(found).values():
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


@for_each_overlay
def test_services_budgets_monitors_and_spread_select_their_pods(found: list[Object]) -> None:
    pods = templates(found)
    labels = [pod["metadata"]["labels"] for pod in pods]
    offered = of_kind(found, "Service")
    assert len(offered) == len(pods) == 3
    for service in offered:
        (port,) = service["spec"]["ports"]
        (pod,) = [p for p in pods if service["spec"]["selector"] == p["metadata"]["labels"]]
        (theirs,) = pod["spec"]["containers"][0]["ports"]
        assert (port["targetPort"], port["port"]) == (theirs["name"], theirs["containerPort"])
    for monitor in of_kind(found, "ServiceMonitor"):
        (service,) = [s for s in offered if monitor["spec"]["selector"]["matchLabels"] == s["metadata"]["labels"]]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {p["name"] for p in service["spec"]["ports"]}
        assert endpoint["path"] == "/metrics"
        assert set(monitor["spec"]) == {"selector", "endpoints"}
    budgets = [o["spec"]["selector"]["matchLabels"] for o in of_kind(found, "PodDisruptionBudget")]
    assert sorted(budgets, key=str) == sorted(labels, key=str)
    for pod in pods:
        spread = pod["spec"]["topologySpreadConstraints"]
        assert [s["topologyKey"] for s in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
        assert all(s["labelSelector"]["matchLabels"] == pod["metadata"]["labels"] for s in spread)


@for_each_overlay
def test_members_are_known_to_their_groups_by_stable_names(found: list[Object]) -> None:
    members = of_kind(found, "StatefulSet")
    assert [o["metadata"]["name"] for o in members] == ["streampca-worker", "streampca-transform"]
    for member in members:
        assert member["spec"]["serviceName"] in {o["metadata"]["name"] for o in of_kind(found, "Service")}
        assert member["spec"]["podManagementPolicy"] == "Parallel"
        (container,) = member["spec"]["template"]["spec"]["containers"]
        assert container["env"] == [
            {"name": "STREAMPCA_GROUP_INSTANCE_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        ]


@for_each_overlay
def test_every_workload_has_its_own_account_and_no_token(found: list[Object]) -> None:
    accounts = {o["metadata"]["name"]: o for o in of_kind(found, "ServiceAccount")}
    used = [pod["spec"]["serviceAccountName"] for pod in templates(found)]
    assert sorted(used) == sorted(accounts)
    assert all(account["automountServiceAccountToken"] is False for account in accounts.values())
    assert all(pod["spec"]["automountServiceAccountToken"] is False for pod in templates(found))


def test_a_store_in_a_bucket_needs_no_volume() -> None:
    found = EVERYTHING["object-store"]
    assert settings_of(found)["STREAMPCA_STORE"].startswith("s3://")
    for container in manifests.containers(found).values():
        assert [v for v in container["pod"]["volumes"] if "emptyDir" not in v] == []
        assert [m["name"] for m in container["volumeMounts"]] == ["tmp"]


def test_one_claim_is_mounted_where_the_image_expects_the_store() -> None:
    found = EVERYTHING["shared-disk"]
    (claim,) = of_kind(found, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert settings_of(found)["STREAMPCA_STORE"] == STORE
    for container in manifests.containers(found).values():
        (volume,) = [v for v in container["pod"]["volumes"] if v["name"] == "store"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "store"]
        assert mount["mountPath"] == STORE
        assert mount.get("readOnly", False) is (container["args"] == ["serve"])


@for_each_overlay
def test_every_container_is_confined(found: list[Object]) -> None:
    uid, gid = map(int, files.last_argument("USER").split(":"))
    for container in manifests.containers(found).values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        pod = container["pod"]["securityContext"]
        assert pod["runAsNonRoot"]
        assert (pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]) == (uid, gid, gid)
        # Otherwise a Service named streampca would set STREAMPCA_PORT to a URL.
        assert container["pod"]["enableServiceLinks"] is False
        assert "memory" in container["resources"]["limits"]


def allowed(policy: Object) -> set[int]:
    """The ports to which a policy lets its pods connect."""
    return {port["port"] for rule in policy.get("egress", []) for port in rule["ports"]}


def policies(found: list[Object]) -> dict[str, Any]:
    """The network policy of each command."""
    specs = [o["spec"] for o in of_kind(found, "NetworkPolicy")]
    selected = {}
    for pod in templates(found):
        (policy,) = [p for p in specs if p["podSelector"]["matchLabels"] == pod["metadata"]["labels"]]
        (container,) = pod["spec"]["containers"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert [port for rule in policy["ingress"] for port in rule["ports"]] == [
            {"port": port["name"]} for port in container["ports"]
        ]
        selected[container["args"][0]] = policy
    assert len(selected) == len(specs)
    return selected


@for_each_overlay
def test_network_policies_allow_only_the_necessary_traffic(found: list[Object]) -> None:
    dns, brokers, registry = {53}, {9092, 9093, 9094, 9096, 9098}, {8081}
    bucket = {443, 80, 988} if found is EVERYTHING["object-store"] else set()
    own = policies(found)
    assert own["transform"]["egress"] == own["worker"]["egress"]
    assert allowed(own["worker"]) == dns | brokers | registry | bucket
    assert allowed(own["serve"]) == (dns | bucket if bucket else set())
    assert int(settings_of(found)["STREAMPCA_BOOTSTRAP_SERVERS"].rpartition(":")[2]) in brokers
    for policy in own.values():  # plain HTTP reaches the addresses of the node alone
        for rule in policy.get("egress", []):
            assert ("to" in rule) is any(port["port"] in (80, 988) for port in rule["ports"])
