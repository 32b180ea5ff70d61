"""The chart as Helm renders it is valid, and everything that it refers to exists: `make helm-test`.

`make test` does not collect this file: building Helm takes minutes.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from streampca.settings.consumer import ConsumerSettings
from streampca.settings.transform import TransformSettings
from streampca.settings.worker import WorkerSettings
from streampca.version import __version__
from tests.deploy import files
from tests.deploy.commands import PORTS, effective_settings, paths_served
from tests.deploy.rendering import (
    BACKFILL,
    CHART,
    KUBERNETES,
    NAMESPACE,
    OPERATORS,
    PUBLIC,
    ROUTE,
    VARIANTS,
    WORKLOADS,
    Object,
    helm,
    identity,
    of_kind,
    pods,
    rendered,
    schema_errors,
    template,
)  # fmt: skip

pytestmark = pytest.mark.timeout(120)
every_variant = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)

CHANGED = ("--values", str(Path(__file__).with_name("values.yaml")))


def settings_of(found: list[Object]) -> dict[str, str]:
    """The data of the ConfigMap."""
    (settings,) = (o for o in of_kind(found, "ConfigMap") if "streampca.json" not in o["data"])
    data: dict[str, str] = settings["data"]
    return data


def egress_of(found: list[Object]) -> dict[str, set[int]]:
    """The ports to which each network policy lets its pods connect."""
    return {
        o["metadata"]["name"].removeprefix("streampca-"): {
            port["port"] for rule in o["spec"].get("egress", []) for port in rule["ports"]
        }
        for o in of_kind(found, "NetworkPolicy")
    }


@every_variant
def test_helm_finds_no_fault(values: str) -> None:
    for given in ((), CHANGED):
        outcome = helm("lint", "--strict", "--kube-version", KUBERNETES, str(CHART), "--set", values, *given)
        assert outcome.returncode == 0, outcome.stdout
        assert "[WARNING]" not in outcome.stdout


@every_variant
def test_objects_match_the_api(values: str) -> None:
    for o in rendered(values) + rendered(values, *CHANGED):
        assert schema_errors(o) == [], identity(o)


@every_variant
def test_commands_settings_ports_and_probes_exist(values: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rendered(values)
    served, scheme = paths_served(), "HTTPS" if "tls.secret" in values else "HTTP"
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "tokens").touch()
    settings = {name: value.replace("/etc/streampca", str(tmp_path)) for name, value in settings_of(found).items()}
    for command, pod in pods(found).items():
        (container,) = pod["spec"]["containers"]
        assert effective_settings(container["args"], settings, monkeypatch)["topic"] == "readings"
        (port,) = container["ports"]
        assert port["containerPort"] == PORTS[command]
        probes = [probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")]
        assert len(probes) >= 2
        assert {(probe["port"], probe["scheme"]) for probe in probes} == {(port["name"], scheme)}
        assert {probe["path"] for probe in probes} <= served[command]
    for job in pods(found, "Job").values():
        effective_settings(job["spec"]["containers"][0]["args"], settings, monkeypatch)


def test_all_ports_and_prometheus_use_the_certificate_and_the_tokens() -> None:
    found = rendered(f"{OPERATORS},{PUBLIC}")
    settings = settings_of(found)
    for pod in pods(found).values():
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        secrets = {volume["name"]: volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume}
        assert settings["STREAMPCA_TLS_FOLDER"] == mounts["tls"]
        assert secrets["tls"] == {"secretName": "certificate", "defaultMode": 0o440}
        (file,) = secrets["tokens"].pop("items")  # the token of Prometheus stays outside
        assert settings["STREAMPCA_TOKENS_FILE"] == f"{mounts['tokens']}/{file['path']}"
        assert (file["key"], secrets["tokens"]) == ("tokens", {"secretName": "tokens", "defaultMode": 0o440})
    endpoints = {o["metadata"]["name"]: o["spec"]["endpoints"][0] for o in of_kind(found, "ServiceMonitor")}
    for name, endpoint in endpoints.items():
        ca = {"secret": {"name": "certificate", "key": "ca.crt"}}
        assert endpoint["tlsConfig"] == {"ca": ca, "serverName": f"{name}.{NAMESPACE}.svc"}
        assert endpoint["authorization"] == {"credentials": {"name": "tokens", "key": "metrics"}}
    assert [endpoint["scheme"] for endpoint in endpoints.values()] == ["https"] * 3
    assert endpoints.keys() <= {o["metadata"]["name"] for o in of_kind(found, "Service")}
    plain = of_kind(rendered(OPERATORS), "ServiceMonitor")
    assert all(o["spec"]["endpoints"][0].keys() == {"port", "path", "interval", "relabelings"} for o in plain)


def test_sidecars_have_their_small_image_and_what_reaches_them_from_outside() -> None:
    found = rendered(f"{PUBLIC},{ROUTE},sidecar.image.repository=small,ingress.tlsSecret=public,transform.enabled=true")
    images = {command: pod["spec"]["containers"][0]["image"] for command, pod in pods(found, *WORKLOADS, "Job").items()}
    assert images.pop("serve") == f"small:{__version__}"
    assert set(images.values()) == {f"streampca:{__version__}"}
    assert ("CMD", '["serve"]') in next(stage for stage in files.stages() if stage[0][1].endswith("AS sidecar"))
    (ingress,), (route,) = of_kind(found, "Ingress"), of_kind(found, "HTTPRoute")
    (service,) = (o for o in of_kind(found, "Service") if o["metadata"]["name"] == "streampca-sidecar")
    (port,) = service["spec"]["ports"]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "streampca-sidecar", "port": {"name": port["name"]}}
    assert ingress["spec"]["tls"] == [{"hosts": [rule["host"]], "secretName": "public"}]
    rules = [{"backendRefs": [{"name": "streampca-sidecar", "port": port["port"]}]}]
    assert route["spec"] == {"parentRefs": [{"name": "public"}], "rules": rules}
    assert of_kind(rendered(), "Ingress", "HTTPRoute") == []


def test_a_backfill_is_a_job_like_a_worker() -> None:
    found = rendered(f"{BACKFILL},backfill.until=0:5,backfill.number=3,store.url=", *CHANGED)
    worker, backfill = pods(found)["worker"]["spec"], pods(found, "Job")["backfill"]["spec"]
    (container,), (of_worker,) = backfill["containers"], worker["containers"]
    assert container["args"][1:] == ["s3://lake/a", "/lake/b", "--column=embedding", "--until=0:5", "--number=3"]
    assert container["envFrom"] == of_worker["envFrom"]
    assert [m["name"] for m in container["volumeMounts"]] == [*(m["name"] for m in of_worker["volumeMounts"]), "lake"]
    assert [v["name"] for v in backfill["volumes"]] == [*(v["name"] for v in worker["volumes"]), "lake"]
    assert all(backfill[name] == worker[name] for name in ("serviceAccountName", "nodeSelector", "securityContext"))
    assert egress_of(found)["backfill"] == {53, 443, 80, 988}
    jobs = rendered(BACKFILL) + rendered(f"{BACKFILL},backfill.number=1")
    assert len({identity(o) for o in of_kind(jobs, "Job")}) == 3  # another backfill is another job, for the same topics


@every_variant
def test_containers_get_the_images_user_no_token_and_their_secrets_alone(values: str) -> None:
    uid, gid = map(int, files.last_argument("USER").split(":"))
    for command, pod in pods(rendered(values)).items():
        security = pod["spec"]["securityContext"]
        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (uid, gid, gid)
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["enableServiceLinks"] is False  # a Service streampca would set STREAMPCA_PORT to a URL
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        secrets = [source["secretRef"]["name"] for source in container["envFrom"][1:]]
        assert secrets == (["streampca-store"] if command == "serve" else ["streampca", "streampca-store"])


@every_variant
def test_the_store_is_a_bucket_without_a_volume_or_a_claim_where_the_image_expects_it(values: str) -> None:
    found, path = rendered(values), files.image_environment()["STREAMPCA_STORE"]
    claims = of_kind(found, "PersistentVolumeClaim")
    if not values.startswith("store.url="):
        assert settings_of(found)["STREAMPCA_STORE"].startswith("s3://")
        assert claims == []
        return
    assert settings_of(found)["STREAMPCA_STORE"] == path
    assert claims[0]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    for command, pod in pods(found).items():
        (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "store"]
        assert volume["persistentVolumeClaim"]["claimName"] == claims[0]["metadata"]["name"]
        (mount,) = [m for m in pod["spec"]["containers"][0]["volumeMounts"] if m["name"] == "store"]
        assert mount["mountPath"] == path
        assert mount.get("readOnly", False) is (command == "serve")


@every_variant
def test_services_monitors_budgets_and_policies_select_their_pods(values: str) -> None:
    found = rendered(values)
    for pod in pods(found).values():
        labels, (port,) = pod["metadata"]["labels"], pod["spec"]["containers"][0]["ports"]
        (service,) = [o for o in of_kind(found, "Service") if o["spec"]["selector"] == labels]
        (open_port,) = service["spec"]["ports"]
        assert open_port.pop("appProtocol") == ("https" if "tls.secret" in values else "http")
        assert open_port == {"name": port["name"], "port": port["containerPort"], "targetPort": port["name"]}
        (policy,) = [o for o in of_kind(found, "NetworkPolicy") if o["spec"]["podSelector"]["matchLabels"] == labels]
        assert [p for rule in policy["spec"]["ingress"] for p in rule["ports"]] == [{"port": port["name"]}]
        assert labels in [o["spec"]["selector"]["matchLabels"] for o in of_kind(found, "PodDisruptionBudget")]
        for monitor in of_kind(found, "ServiceMonitor"):
            if monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]:
                assert monitor["spec"]["endpoints"][0]["port"] == port["name"]


@pytest.mark.parametrize("values", ["", "store.url="])
def test_network_policies_allow_only_the_necessary_traffic(values: str) -> None:
    found = rendered(f"{values},transform.enabled=true".strip(","))
    bucket = set() if values else {443, 80, 988}
    clients = {53, 9092, 9093, 9094, 9096, 9098, 8081} | bucket
    assert egress_of(found) == {"worker": clients, "transform": clients, "sidecar": {53} | bucket if bucket else set()}


def test_rules_and_scrapes_are_those_of_the_compose_file() -> None:
    found = rendered(OPERATORS)
    (rule,) = of_kind(found, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    scraped = yaml.safe_load((files.ROOT / "docker" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    jobs = [o["spec"]["endpoints"][0]["relabelings"][0] for o in of_kind(found, "ServiceMonitor")]
    assert len(jobs) == 3
    assert {job["replacement"] for job in jobs} | {"prometheus"} == {job["job_name"] for job in scraped}
    (dashboard,) = (o for o in of_kind(found, "ConfigMap") if "grafana_dashboard" in o["metadata"]["labels"])
    assert dashboard["data"]["streampca.json"] == (CHART / "files" / "dashboard.json").read_text().strip()


def test_sidecars_are_scaled_by_their_load() -> None:
    found = rendered("sidecar.autoscaling.enabled=true,sidecar.autoscaling.maxReplicas=9")
    (scaler,), (sidecar,) = of_kind(found, "HorizontalPodAutoscaler"), of_kind(found, "Deployment")
    assert "replicas" not in sidecar["spec"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == sidecar["metadata"]["name"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 9)
    assert sidecar["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]  # compared to it
    assert of_kind(rendered(), "HorizontalPodAutoscaler") == []


def test_options_have_their_effect() -> None:
    found = rendered("", *CHANGED)
    changed = {"STREAMPCA_HALF_LIFE_MESSAGES": "10000000", "STREAMPCA_GROUP_ID": "mine"}
    assert settings_of(found).items() >= changed.items()
    assert of_kind(found, "PersistentVolumeClaim") == []
    worker = pods(found)["worker"]
    assert worker["metadata"]["labels"]["azure.workload.identity/use"] == "true"
    assert worker["metadata"]["annotations"]["example.com/team"] == "data"
    assert worker["spec"]["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert {"name": "store", "persistentVolumeClaim": {"claimName": "mine"}} in worker["spec"]["volumes"]
    (container,) = worker["spec"]["containers"]
    assert container["image"] == f"registry.test/streampca@sha256:{'ab' * 32}"
    assert [m["name"] for m in container["volumeMounts"]] == ["tmp", "store", "ca"]
    assert [s["secretRef"]["name"] for s in container["envFrom"][1:]] == ["brokers", "bucket"]
    (trigger,) = of_kind(found, "ScaledObject")[0]["spec"]["triggers"]
    assert trigger["metadata"].items() >= {"consumerGroup": "mine", "lagThreshold": "2000000", "tls": "enable"}.items()
    assert trigger["authenticationRef"] == {"name": "kafka"}
    assert egress_of(found) == {"sidecar": set(), "worker": {53, 19092}, "transform": {53, 19092}}
    allowed = [
        rule["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"]
        for o in of_kind(found, "NetworkPolicy")
        for rule in o["spec"]["ingress"]
    ]
    assert sorted(allowed) == [["monitoring"], ["monitoring"], ["search", "monitoring"]]
    assert "https://wiki.test/streampca#streampcaworkerdown" in str(of_kind(found, "PrometheusRule"))
    job = pods(found, "Job")["create-topics"]
    assert job["spec"]["containers"][0]["args"][1:] == ["--partitions=6", "--replication-factor=3"]
    assert [o["spec"].get("replicas") for o in of_kind(found, "StatefulSet")] == [None, 4]
    assert pods(found)["transform"]["metadata"]["labels"]["example.com/team"] == "data"


@every_variant
def test_topics_are_created_before_anything_else_exists(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rendered(values)
    job = next(o for o in of_kind(found, "Job") if "annotations" in o["metadata"])
    pod, variables = job["spec"]["template"]["spec"], settings_of(found)
    (container,) = pod["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment == variables
    effective = effective_settings(container["args"], environment, monkeypatch)
    for name in ("topic", "dead_letter_topic", "output_topic"):
        assert effective[name] == variables.get(f"STREAMPCA_{name.upper()}", "")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "serviceAccountName" not in pod  # as all that the release makes, it does not exist yet
    assert "configMapRef" not in str(container["envFrom"])
    assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    assert "create-topics" not in pods(rendered(f"{values},topics.create=false".strip(",")), "Job")


def test_a_release_names_only_its_own_objects() -> None:
    outcome = template(f"store.url=,{OPERATORS},{PUBLIC},{BACKFILL}", release="other")
    found = [o for o in yaml.load_all(outcome.stdout, yaml.CSafeLoader) if o]
    assert {o["metadata"]["labels"]["app.kubernetes.io/instance"] for o in found} == {"other"}
    assert {o["metadata"]["name"] for o in found} == set(re.findall(r"\bother-streampca[\w-]*", outcome.stdout))
    kinds = {"serviceAccountName": "ServiceAccount", "serviceName": "Service", "claimName": "PersistentVolumeClaim"}
    referred = {(kinds[f], name) for f, name in re.findall(rf"({'|'.join(kinds)}): (\S+)", outcome.stdout)}
    referred |= {(t["kind"], t["name"]) for t in (o["spec"]["scaleTargetRef"] for o in of_kind(found, "ScaledObject"))}
    assert len(referred) == 3 + 2 + 1 + 2
    assert referred <= {identity(o) for o in found}


@pytest.mark.parametrize("values", ["settings.topic=clicks", "settings.group_id=a,settings.transform_group_id=b"])
@pytest.mark.parametrize(("component", "kind"), [("worker", WorkerSettings), ("transform", TransformSettings)])
def test_members_are_scaled_on_the_lag_of_their_group(
    values: str, component: str, kind: type[ConsumerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rendered(f"{OPERATORS},autoscaling.authenticationRef=kafka,{values}")
    objects = {identity(o): o for o in found}
    scaled, members = (objects[of, f"streampca-{component}"] for of in ("ScaledObject", "StatefulSet"))
    assert "replicas" not in members["spec"]  # an upgrade must not undo the scaling
    for variable, value in settings_of(found).items():
        monkeypatch.setenv(variable, value)
    effective = kind.read()
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"] == {"name": "kafka"}
    assert trigger["metadata"] == {
        "bootstrapServers": effective.bootstrap_servers,
        "topic": effective.topic,
        "consumerGroup": effective.group,
        "lagThreshold": "100000",
        "offsetResetPolicy": "earliest",  # a group that has committed nothing starts at the beginning
    }


def test_outputs_of_each_topic_go_to_its_own_topic_by_default() -> None:
    def outputs(values: str) -> Any:
        return settings_of(rendered(f"settings.topic=clicks,{values}")).get("STREAMPCA_OUTPUT_TOPIC")

    assert outputs("transform.enabled=false") is None
    assert outputs("transform.enabled=true") == "clicks-projected"
    assert outputs("transform.enabled=true,settings.output_topic=mine") == "mine"


def test_names_stay_short_enough_for_labels() -> None:
    for o in rendered(BACKFILL, release="r" * 53):
        suffix = "-12345" if o["kind"] == "Job" else "-1234567890"
        assert len(o["metadata"]["name"]) <= 63 - len(suffix)


def test_a_change_of_the_settings_restarts_the_pods() -> None:
    def sums(values: str) -> list[str]:
        return re.findall("checksum/settings: (.*)", template(values).stdout)

    before, same, changed = sums(""), sums("worker.replicas=5"), sums("settings.components=9")
    assert (len(before), len(set(before))) == (3, 1)  # with the job of the topics
    assert same == before
    assert not set(changed) & set(before)


@pytest.mark.parametrize(
    "mistake", ["settings.dimension=784", "settings.topic=null", "store.url=bucket", "replicas=3", "httpRoute.name=x"]
)
def test_mistakes_are_refused(mistake: str) -> None:
    outcome = template(mistake)
    assert outcome.returncode != 0
    assert mistake.partition("=")[0].split(".")[-1] in outcome.stderr
