"""Everything that the chart refers to exists, as Helm renders it: `make helm-test`.

`make test` does not collect this file: building Helm takes minutes.
"""

from pathlib import Path

import pytest
import yaml

from streampca.version import __version__
from tests.deploy import files
from tests.deploy.commands import PORTS, effective_settings, paths_served
from tests.deploy.rendering import (
    CHANGED,
    CHART,
    KUBERNETES,
    NAMESPACE,
    OPERATORS,
    PUBLIC,
    ROUTE,
    VARIANTS,
    WORKLOADS,
    helm,
    of_kind,
    pods,
    rendered,
    settings_of,
)  # fmt: skip

pytestmark = pytest.mark.timeout(120)
every_variant = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)


@every_variant
@pytest.mark.parametrize("given", [(), CHANGED])
def test_helm_finds_no_fault(values: str, given: tuple[str, ...]) -> None:
    outcome = helm("lint", "--strict", "--kube-version", KUBERNETES, str(CHART), "--set", values, *given)
    assert outcome.returncode == 0, outcome.stdout
    assert "[WARNING]" not in outcome.stdout


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
    assert all(o["spec"]["endpoints"][0].keys() == {"port", "path", "interval"} for o in plain)


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


@every_variant
def test_containers_get_the_images_user_no_token_and_their_secrets_alone(values: str) -> None:
    gid = int(files.last_argument("USER").split(":")[1])
    for command, pod in pods(rendered(values)).items():
        security = pod["spec"]["securityContext"]
        assert ("runAsUser" not in security, security["fsGroup"]) == (True, gid)
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


def test_rules_and_dashboard_are_those_of_the_compose_file() -> None:
    found = rendered(OPERATORS)
    (rule,) = of_kind(found, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    (dashboard,) = (o for o in of_kind(found, "ConfigMap") if "grafana_dashboard" in o["metadata"]["labels"])
    assert dashboard["data"]["streampca.json"] == (CHART / "files" / "dashboard.json").read_text().strip()


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
    of_hooks = {o["metadata"]["name"] for o in found if "helm.sh/hook" in o["metadata"].get("annotations", {})}
    assert of_hooks == {
        job["metadata"]["name"],
        pod["serviceAccountName"],
    }  # all else of the release does not exist yet
    assert "configMapRef" not in str(container["envFrom"])
    assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    assert "create-topics" not in pods(rendered(f"{values},topics.create=false".strip(",")), "Job")
