"""The options of the chart have their effect as Helm renders it: `make helm-test`.

`make test` does not collect this file: building Helm takes minutes.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from streampca.settings.commands import ConsumerSettings, TransformSettings, WorkerSettings
from tests.deploy.rendering import (
    BACKFILL,
    CHANGED,
    CHART,
    KUBERNETES,
    OPERATORS,
    PUBLIC,
    egress_of,
    helm,
    identity,
    of_kind,
    pods,
    rendered,
    settings_of,
    template,
)  # fmt: skip

pytestmark = pytest.mark.timeout(120)


def test_a_backfill_is_a_job_like_a_worker() -> None:
    found = rendered(f"{BACKFILL},backfill.until=0:5,backfill.number=3,store.url=", *CHANGED)
    worker, backfill = pods(found)["worker"]["spec"], pods(found, "Job")["backfill"]["spec"]
    (container,), (of_worker,) = backfill["containers"], worker["containers"]
    assert container["args"][1:] == ["s3://lake/a", "/lake/b", "--field=embedding", "--until=0:5", "--number=3"]
    assert container["envFrom"] == of_worker["envFrom"]
    assert [m["name"] for m in container["volumeMounts"]] == [*(m["name"] for m in of_worker["volumeMounts"]), "lake"]
    assert [v["name"] for v in backfill["volumes"]] == [*(v["name"] for v in worker["volumes"]), "lake"]
    assert all(backfill[name] == worker[name] for name in ("serviceAccountName", "nodeSelector", "securityContext"))
    assert egress_of(found)["backfill"] == {53, 5353, 443, 80, 988}
    csv = "backfill.where=q=true,backfill.skipLines=1000000,backfill.encoding=latin-1,backfill.separator=;"
    for header, option in (("yes", "--header"), ("no", "--no-header")):
        (container,) = pods(rendered(f"{BACKFILL},{csv},backfill.header={header}"), "Job")["backfill"]["spec"][
            "containers"
        ]
        assert container["args"][4:-1] == [
            "--where=q=true",
            "--skip-lines=1000000",
            "--encoding=latin-1",
            "--separator=;",
            option,
        ]
    jobs = rendered(BACKFILL) + rendered(f"{BACKFILL},backfill.number=1")
    assert len({identity(o) for o in of_kind(jobs, "Job")}) == 3  # another backfill is another job, for the same topics


@pytest.mark.parametrize("values", ["", "store.url="])
def test_network_policies_allow_only_the_necessary_traffic(values: str) -> None:
    found = rendered(f"{values},transform.enabled=true".strip(","))
    bucket = set() if values else {443, 80, 988}
    clients = {53, 5353, 9092, 9093, 9094, 9096, 9098, 8081} | bucket
    sidecar = {53, 5353} | bucket if bucket else set()
    assert egress_of(found) == {"worker": clients, "transform": clients, "sidecar": sidecar}


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
    image = f"registry.test/streampca@sha256:{'ab' * 32}"
    assert (container["image"], container["imagePullPolicy"]) == (image, "Always")
    assert [m["name"] for m in container["volumeMounts"]] == ["tmp", "store", "ca"]
    assert [s["secretRef"]["name"] for s in container["envFrom"][1:]] == ["brokers", "bucket"]
    (trigger,) = of_kind(found, "ScaledObject")[0]["spec"]["triggers"]
    assert trigger["metadata"].items() >= {"consumerGroup": "mine", "lagThreshold": "2000000", "tls": "enable"}.items()
    assert trigger["authenticationRef"] == {"name": "kafka"}
    ports_of_members = {53, 5353, 9092, 19092}  # 9092 is that of bootstrap_servers
    assert egress_of(found) == {"sidecar": set(), "worker": ports_of_members, "transform": ports_of_members}
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


def test_a_release_names_only_its_own_objects() -> None:
    outcome = template(f"store.url=,{OPERATORS},{PUBLIC},{BACKFILL}", release="other")
    found = [o for o in yaml.load_all(outcome.stdout, yaml.CSafeLoader) if o]
    assert {o["metadata"]["labels"]["app.kubernetes.io/instance"] for o in found} == {"other"}
    assert {o["metadata"]["name"] for o in found} == set(re.findall(r"\bother-streampca[\w-]*", outcome.stdout))
    kinds = {"serviceAccountName": "ServiceAccount", "serviceName": "Service", "claimName": "PersistentVolumeClaim"}
    referred = {(kinds[f], name) for f, name in re.findall(rf"({'|'.join(kinds)}): (\S+)", outcome.stdout)}
    referred |= {(t["kind"], t["name"]) for t in (o["spec"]["scaleTargetRef"] for o in of_kind(found, "ScaledObject"))}
    assert len(referred) == 4 + 2 + 1 + 2
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


def test_the_notes_name_objects_of_the_release(tmp_path: Path) -> None:
    """`helm template` does not show them, so a copy of the chart has them in an object."""
    chart = shutil.copytree(CHART, tmp_path / "chart")
    (chart / "templates" / "NOTES.txt").rename(chart / "files" / "notes.txt")
    notes = 'kind: Notes\nmetadata: {name: notes}\ntext: {{ tpl (.Files.Get "files/notes.txt") . | toJson }}\n'
    (chart / "templates" / "notes.yaml").write_text(notes)
    values = "store.url=,ingress.enabled=true,ingress.host=pca.test"
    outcome = helm("template", "other", str(chart), "--kube-version", KUBERNETES, "--set", values)
    found = {identity(o): o for o in yaml.safe_load_all(outcome.stdout) if o}
    text = found["Notes", "notes"]["text"]
    assert "set tokens.secret" in text
    named = set(re.findall(r"(statefulset|service)/([\w-]+)", text))
    assert len(named) == 2
    assert named <= {(kind.lower(), name) for kind, name in found}


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
