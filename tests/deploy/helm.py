"""The chart, rendered by Helm, equals the manifests, built by kubectl: `make helm-test`.

`make test` does not collect this file: building the two takes minutes.
"""

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy import manifests
from tests.deploy.manifests import Object, identity, of_kind
from tests.deploy.rendering import CHART, KUBERNETES, VARIANTS, Variant, charted, helm, kustomized, template
from tests.deploy.test_operators import SCHEMAS, schema_errors

pytestmark = pytest.mark.timeout(120)
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)

OPTIONS = {
    "image": {"repository": "registry.test/streampca", "tag": "1.2.3"},
    "settings": {"half_life_messages": 10000000, "group_id": "mine"},
    "secret": "brokers",
    "store": {"url": "", "secret": "bucket", "disk": {"storageClass": "cephfs", "existingClaim": "mine"}},
    "worker": {
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/writer"}},
        "podLabels": {"azure.workload.identity/use": "true"},
        "podAnnotations": {"example.com/team": "data"},
        "podSpec": {"nodeSelector": {"kubernetes.io/arch": "amd64"}, "imagePullSecrets": [{"name": "registry"}]},
        "volumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/etc/kafka", "readOnly": True}],
    },
    "transform": {"enabled": True, "replicas": 4, "podLabels": {"example.com/team": "data"}},
    "networkPolicy": {"brokerPorts": [19092], "registryPorts": []},
    "autoscaling": {
        "enabled": True,
        "lagThreshold": 2000000,
        "metadata": {"tls": "enable"},
        "authenticationRef": "kafka",
    },
}


@pytest.fixture
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Helm's option for a file with every kind of change."""
    file = tmp_path_factory.mktemp("values") / "values.yaml"
    file.write_text(yaml.safe_dump(OPTIONS))
    return ["--values", str(file)]


def workers(found: list[Object]) -> Object:
    (only,) = [o for o in of_kind(found, "StatefulSet") if o["metadata"]["name"].endswith("-worker")]
    return only


@every_variant
def test_the_tests_own_kustomize_builds_what_kubectl_builds(variant: Variant) -> None:
    own = manifests.built(variant.overlay, *variant.components)
    assert sorted(own, key=identity) == kustomized(variant)


@every_variant
def test_the_chart_equals_the_manifests(variant: Variant) -> None:
    chart, built = ({identity(o): o for o in found} for found in (charted(*variant.options), kustomized(variant)))
    assert chart.keys() == built.keys()
    for key in chart:
        assert chart[key] == built[key]


@every_variant
def test_helm_finds_no_fault(variant: Variant, options: list[str]) -> None:
    for given in ([], options):
        outcome = helm("lint", "--strict", "--kube-version", KUBERNETES, str(CHART), *variant.options, *given)
        assert outcome.returncode == 0, outcome.stdout
        assert "[WARNING]" not in outcome.stdout


def test_options_have_their_effect(options: list[str]) -> None:
    found = charted(*options)
    (settings,) = of_kind(found, "ConfigMap")
    assert settings["data"]["STREAMPCA_HALF_LIFE_MESSAGES"] == "10000000"
    assert settings["data"]["STREAMPCA_GROUP_ID"] == "mine"
    assert settings["data"].keys() >= {"STREAMPCA_TOPIC", "STREAMPCA_STORE"}
    assert of_kind(found, "PersistentVolumeClaim") == []
    pods = workers(found)["spec"]["template"]
    assert pods["metadata"]["labels"]["azure.workload.identity/use"] == "true"
    assert pods["metadata"]["annotations"] == {"example.com/team": "data"}
    assert pods["spec"]["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pods["spec"]["volumes"] if v["name"] == "store"]
    assert claims == ["mine"]
    (container,) = pods["spec"]["containers"]
    assert container["image"] == "registry.test/streampca:1.2.3"
    assert [m["name"] for m in container["volumeMounts"]] == ["tmp", "store", "ca"]
    assert [s["secretRef"]["name"] for s in container["envFrom"][1:]] == ["brokers", "bucket"]
    (trigger,) = of_kind(found, "ScaledObject")[0]["spec"]["triggers"]
    assert trigger["metadata"].items() >= {"consumerGroup": "mine", "lagThreshold": "2000000", "tls": "enable"}.items()
    assert trigger["authenticationRef"] == {"name": "kafka"}
    _, *members = of_kind(found, "NetworkPolicy")
    for policy in members:
        assert [p["port"] for rule in policy["spec"]["egress"] for p in rule["ports"]] == [53, 53, 19092]
    transform = of_kind(found, "StatefulSet")[0]["spec"]
    assert transform["replicas"] == 4
    assert transform["template"]["metadata"]["labels"]["example.com/team"] == "data"
    for o in found:
        if o["kind"] in SCHEMAS:
            assert schema_errors(o) == []
        else:
            kubernetes_validate.validate(o, KUBERNETES, strict=True)


def test_two_releases_share_nothing() -> None:
    options = Variant("shared-disk", manifests.components_of("shared-disk")).options
    first, second = charted(*options), charted(*options, release="other")
    assert not {identity(o) for o in first} & {identity(o) for o in second}
    for o in second:
        assert o["metadata"]["name"].startswith("other-streampca")
        assert o["metadata"]["labels"]["app.kubernetes.io/instance"] == "other"
    names = {identity(o) for o in second}
    used = {
        reference
        for pod in (o["spec"]["template"]["spec"] for o in of_kind(second, *manifests.WORKLOADS))
        for reference in [
            ("ServiceAccount", pod["serviceAccountName"]),
            ("ConfigMap", pod["containers"][0]["envFrom"][0]["configMapRef"]["name"]),
            *(("PersistentVolumeClaim", v["persistentVolumeClaim"]["claimName"]) for v in pod["volumes"][1:]),
        ]
    }
    assert len(used) == 5
    assert used | {("Service", workers(second)["spec"]["serviceName"])} <= names
    scaled = [("StatefulSet", o["spec"]["scaleTargetRef"]["name"]) for o in of_kind(second, "ScaledObject")]
    assert len(scaled) == 2
    assert set(scaled) <= names


def test_each_topic_has_its_own_group_which_is_scaled_on() -> None:
    found = charted("--set", "settings.topic=clicks,autoscaling.enabled=true")
    (settings,) = of_kind(found, "ConfigMap")
    (trigger,) = of_kind(found, "ScaledObject")[0]["spec"]["triggers"]
    assert settings["data"]["STREAMPCA_GROUP_ID"] == trigger["metadata"]["consumerGroup"] == "streampca-clicks"


def test_members_of_transform_are_scaled_on_their_group_with_the_login_of_the_workers() -> None:
    def triggers(*options: str) -> list[Any]:
        scaling = "transform.enabled=true,transform.autoscaling.enabled=true,autoscaling.authenticationRef=kafka"
        found = of_kind(charted("--set", ",".join((scaling, *options))), "ScaledObject")
        return [trigger for o in found for trigger in o["spec"]["triggers"]]

    (of_topic,), (of_group,) = triggers("settings.topic=clicks"), triggers("settings.transform_group_id=mine")
    assert of_topic["metadata"]["consumerGroup"] == "streampca-transform-clicks"
    assert of_group["metadata"]["consumerGroup"] == "mine"
    assert of_topic["authenticationRef"] == {"name": "kafka"}
    assert triggers("transform.enabled=false") == []


def test_outputs_of_each_topic_go_to_its_own_topic_by_default() -> None:
    def outputs(*options: str) -> Any:
        (settings,) = of_kind(charted(*options), "ConfigMap")
        return settings["data"].get("STREAMPCA_OUTPUT_TOPIC")

    enabled = "settings.topic=clicks,transform.enabled=true"
    assert outputs("--set", "settings.topic=clicks") is None
    assert outputs("--set", enabled) == "clicks-projected"
    assert outputs("--set", f"{enabled},settings.output_topic=mine") == "mine"


def test_names_stay_short_enough_for_labels() -> None:
    found = charted(release="r" * 53)
    assert max(len(o["metadata"]["name"]) for o in found) <= 63 - len("-1234567890")


def test_a_change_of_the_settings_restarts_the_pods() -> None:
    def sums(*options: str) -> list[str]:
        return re.findall("checksum/settings: (.*)", template(*options).stdout)

    before, same, changed = sums(), sums("--set", "worker.replicas=5"), sums("--set", "settings.components=9")
    assert len(set(before)) == 1
    assert len(before) == 2
    assert same == before
    assert not set(changed) & set(before)


@pytest.mark.parametrize(
    "mistake", ["settings.sasl_password=x", "settings.topic=null", "store.url=bucket", "replicas=3"]
)
def test_mistakes_are_refused(mistake: str) -> None:
    outcome = template("--set", mistake)
    assert outcome.returncode != 0
    assert mistake.partition("=")[0].split(".")[-1] in outcome.stderr


def test_the_claim_survives_the_release() -> None:
    given = Variant("shared-disk").options
    outcome = template(*given, "--show-only", "templates/store.yaml")
    assert yaml.safe_load(outcome.stdout)["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
