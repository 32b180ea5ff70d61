"""The chart where clusters differ, as Helm renders it with what their users set: `make helm-test`."""

import pytest

from tests.deploy import files
from tests.deploy.rendering import (
    BACKFILL,
    CLUSTERS,
    OPERATORS,
    PUBLIC,
    ROLE,
    WORKLOADS,
    Object,
    identity,
    of_kind,
    pods,
    rendered,
)  # fmt: skip

pytestmark = pytest.mark.timeout(120)
INGRESS, ROUTE = CLUSTERS["ALB"]["ingress"], {"enabled": True, "parentRefs": [{"name": "gateway"}]}


def policy_of(found: list[Object], component: str) -> Object:
    """The network policy of the component's pods."""
    return next(o["spec"] for o in of_kind(found, "NetworkPolicy") if o["metadata"]["name"].endswith(component))


def test_all_objects_have_the_common_labels() -> None:
    common = {"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "team"}
    found = rendered(f"{OPERATORS},{PUBLIC},{BACKFILL},store.url=,commonLabels.team=data")
    assert [identity(o) for o in found if not common <= o["metadata"]["labels"].keys()] == []


def test_the_prometheus_of_a_default_stack_selects_monitors_and_rules() -> None:
    found = rendered(CLUSTERS["kube-prometheus-stack"])
    selected = [o["kind"] for o in found if o["metadata"]["labels"].get("release") == "kube-prometheus-stack"]
    assert selected == ["ConfigMap", "PrometheusRule", "ServiceMonitor", "ServiceMonitor"]
    assert {o["spec"]["endpoints"][0]["interval"] for o in of_kind(found, "ServiceMonitor")} == {"30s"}


def test_openshift_chooses_users_and_groups_and_has_its_own_port_of_dns() -> None:
    found = rendered(CLUSTERS["OpenShift"])
    for pod in pods(found, *WORKLOADS, "Job").values():
        assert pod["spec"]["securityContext"].keys() == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}
    assert {"port": 5353, "protocol": "UDP"} in policy_of(found, "worker")["egress"][0]["ports"]


@pytest.mark.parametrize(("cluster", "role"), [("EKS with IRSA", ROLE), ("EKS with Pod Identity", {})])
def test_workers_and_the_job_of_the_topics_have_the_role(cluster: str, role: dict[str, str]) -> None:
    found = rendered(CLUSTERS[cluster])
    accounts = {o["metadata"]["name"]: o["metadata"].get("annotations", {}) for o in of_kind(found, "ServiceAccount")}
    hook = {
        "helm.sh/hook": "pre-install,pre-upgrade", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }  # fmt: skip
    (job,) = of_kind(found, "Job")
    first = {"helm.sh/hook-weight": "-1"}  # the job's is 0
    assert job["metadata"]["annotations"] == hook
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "streampca-topics"
    assert accounts == {"streampca-topics": hook | first | role, "streampca-worker": role, "streampca-sidecar": {}}
    # To the provider's login, also with the store on a shared disk.
    logins = [{"ipBlock": {"cidr": cidr}} for cidr in ("169.254.0.0/16", "fd00:ec2::/32")]
    egress = policy_of(found, "worker")["egress"]
    assert [rule["to"] for rule in egress if "to" in rule] == [logins]
    assert {"ports": [{"port": 443}]} in egress


@pytest.mark.parametrize(
    ("values", "addresses"),
    [
        ({}, None),
        (CLUSTERS["ALB"], None),
        ({"httpRoute": ROUTE, "networkPolicy": {"clientNamespaces": ["search"]}}, None),
        ({"networkPolicy": {"clientNamespaces": ["search"]}}, []),
        (CLUSTERS["IPv6 alone"], ["fd00:10::/48"]),
        ({"ingress": INGRESS, "networkPolicy": {"clientCidrs": ["10.0.0.0/16"]}}, ["10.0.0.0/16"]),
    ],
)
def test_everybody_may_connect_unless_lists_say_who_may(values: Object, addresses: list[str] | None) -> None:
    (rule,) = policy_of(rendered(values), "sidecar")["ingress"]
    peers = rule.get("from")
    assert addresses == (peers and [peer["ipBlock"]["cidr"] for peer in peers if "ipBlock" in peer])
    assert files.image_environment()["STREAMPCA_HOST"] == "::"  # so that these addresses reach it


def test_egress_allows_the_ports_of_urls_among_the_variables() -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://[fd00::4317]:4318/v1", "HTTPS_PROXY": "http://me:secret@proxy:3128",
        "AWS_ENDPOINT_URL": "https://s3.test", "SSL_CERT_FILE": "/ca.pem", "NO_PROXY": "10.0.0.0/8,.svc",
    }  # fmt: skip
    settings = {"schema_registry_url": "http://one:18081,http://two:18082"}
    found = rendered({"environment": variables, "store": {"url": ""}, "settings": settings})
    _dns, urls = policy_of(found, "sidecar")["egress"]
    assert urls == {"ports": [{"port": 3128}, {"port": 4318}, {"port": 443}]}
    assert {"port": 18082} in policy_of(found, "worker")["egress"][-1]["ports"]
    (job,) = pods(found, "Job").values()
    assert {"name": "SSL_CERT_FILE", "value": "/ca.pem"} in job["spec"]["containers"][0]["env"]


@pytest.mark.parametrize(
    ("servers", "ports"),
    [
        ("kafka-3f2a.aivencloud.com:13041", {13041}),
        ("one.example.com:19092, two.example.com:29092,three.example.com:19092", {19092, 29092}),
        ("[2001:db8::5]:39092", {39092}),
    ],
)
def test_members_may_reach_the_ports_of_their_brokers_and_sidecars_may_not(servers: str, ports: set[int]) -> None:
    found = rendered({"settings": {"bootstrap_servers": servers}, "transform": {"enabled": True}})

    def allowed_ports(component: str) -> set[int]:
        rules = policy_of(found, component)["egress"]
        return {port["port"] for rule in rules for port in rule["ports"]}

    assert ports <= allowed_ports("worker") & allowed_ports("transform")
    assert not ports & allowed_ports("sidecar")


@pytest.mark.parametrize(("settings", "sets_rack"), [({}, True), ({"rack": "b"}, False)])
def test_a_member_knows_the_zone_of_its_pod_unless_rack_is_set(settings: Object, sets_rack: bool) -> None:
    found = rendered({"settings": settings, "transform": {"enabled": True}})
    for pod in pods(found, "StatefulSet").values():
        zones = [v for v in pod["spec"]["containers"][0]["env"] if v["name"] == "STREAMPCA_RACK"]
        paths = [zone["valueFrom"]["fieldRef"]["fieldPath"] for zone in zones]
        assert paths == ["metadata.labels['topology.kubernetes.io/zone']"] * sets_rack


def test_podspec_merges_into_every_pod_by_the_names_of_items() -> None:
    proxy, mount = {"name": "proxy", "image": "proxy:1"}, {"name": "tmp", "mountPath": "/cache"}
    own = {"name": "worker", "args": ["worker", "--start", "latest"], "volumeMounts": [mount], "env": [{"name": "A"}]}
    found = rendered(
        {
            "podSpec": {
                "nodeSelector": {"disk": "ssd"},
                "topologySpreadConstraints": [],
                "securityContext": {"seccompProfile": None, "fsGroup": 7, "supplementalGroups": [9]},
            },
            "worker": {"podSpec": {"containers": [own, proxy], "nodeSelector": {"zone": "a"}}},
            "backfill": {"enabled": True, "sources": ["/lake"]},
        }
    )
    everywhere = pods(found, *WORKLOADS, "Job")
    selectors = {command: pod["spec"]["nodeSelector"] for command, pod in everywhere.items()}
    assert selectors.pop("serve") == {"disk": "ssd"}
    both = {"disk": "ssd", "zone": "a"}
    assert selectors == {"worker": both, "create-topics": both, "backfill": both}
    context = {"fsGroupChangePolicy": "OnRootMismatch", "runAsNonRoot": True, "fsGroup": 7, "supplementalGroups": [9]}
    assert everywhere["create-topics"]["spec"]["securityContext"] == context
    assert everywhere["serve"]["spec"]["topologySpreadConstraints"] == []
    worker, second = everywhere["worker"]["spec"]["containers"]
    assert (second, worker["args"]) == (proxy, own["args"])
    assert [m["mountPath"] for m in worker["volumeMounts"]] == ["/tmp", "/cache"]  # noqa: S108
    assert [variable["name"] for variable in worker["env"]] == ["STREAMPCA_GROUP_INSTANCE_ID", "STREAMPCA_RACK", "A"]
