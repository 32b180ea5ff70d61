"""The chart where clusters differ, as Helm renders it with what their users set: `make helm-test`."""

import pytest

from tests.deploy import files
from tests.deploy.rendering import (
    CLUSTERS,
    ROLE,
    WORKLOADS,
    Object,
    identity,
    of_kind,
    pods,
    rendered_with,
    schema_errors,
)  # fmt: skip

pytestmark = pytest.mark.timeout(120)


def policy_of(found: list[Object], component: str) -> Object:
    """The network policy of the component's pods."""
    (policy,) = [o for o in of_kind(found, "NetworkPolicy") if o["metadata"]["name"].endswith(component)]
    return policy["spec"]


def addresses(rules: list[Object], side: str) -> list[str]:
    """The networks to or from which rules allow connections."""
    return [peer["ipBlock"]["cidr"] for rule in rules for peer in rule.get(side, ()) if "ipBlock" in peer]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_objects_match_the_api_and_have_the_common_labels(cluster: str) -> None:
    for o in rendered_with(CLUSTERS[cluster] | {"commonLabels": {"team": "data"}}):
        assert schema_errors(o) == [], identity(o)
        common = {"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "team"}
        assert common <= o["metadata"]["labels"].keys()


def test_the_prometheus_of_a_default_stack_selects_monitors_and_rules() -> None:
    found = rendered_with(CLUSTERS["kube-prometheus-stack"])
    selected = [o for o in found if o["metadata"]["labels"].get("release") == "kube-prometheus-stack"]
    assert [o["kind"] for o in selected] == ["ConfigMap", "PrometheusRule", *["ServiceMonitor"] * 2]
    assert {o["spec"]["endpoints"][0]["interval"] for o in of_kind(found, "ServiceMonitor")} == {"30s"}


def test_openshift_chooses_users_and_groups_and_has_its_own_port_of_dns() -> None:
    found = rendered_with(CLUSTERS["OpenShift"])
    for pod in pods(found, *WORKLOADS, "Job").values():
        assert pod["spec"]["securityContext"].keys() == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}
    assert {"port": 5353, "protocol": "UDP"} in policy_of(found, "worker")["egress"][0]["ports"]


@pytest.mark.parametrize(("cluster", "role"), [("EKS with IRSA", ROLE), ("EKS with Pod Identity", {})])
def test_workers_and_the_job_of_the_topics_have_the_role(cluster: str, role: dict[str, str]) -> None:
    found = rendered_with(CLUSTERS[cluster])
    accounts = {o["metadata"]["name"]: o["metadata"].get("annotations", {}) for o in of_kind(found, "ServiceAccount")}
    hook = {
        "helm.sh/hook": "pre-install,pre-upgrade", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }  # fmt: skip
    (job,) = of_kind(found, "Job")
    assert job["metadata"]["annotations"] == hook
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "streampca-topics"
    first = {"helm.sh/hook-weight": "-1"}  # the job's is 0
    assert accounts == {"streampca-topics": hook | first | role, "streampca-worker": role, "streampca-sidecar": {}}
    egress = policy_of(found, "worker")["egress"]  # to the provider's login, also with the store on a shared disk
    assert addresses(egress, "to") == ["169.254.0.0/16", "fd00:ec2::/32"]
    assert {"ports": [{"port": 443}]} in egress


def test_ports_listen_on_ipv6_and_its_clients_may_connect() -> None:
    found = rendered_with(CLUSTERS["IPv6 alone"])
    assert files.image_environment()["STREAMPCA_HOST"] == "::"
    assert addresses(policy_of(found, "sidecar")["ingress"], "from") == ["fd00:10::/48"]


@pytest.mark.parametrize(
    ("lists", "route", "is_open"),
    [
        ({}, {}, True),
        ({"clientNamespaces": ["search"]}, {}, False),
        (CLUSTERS["ALB"]["networkPolicy"], {"ingress": CLUSTERS["ALB"]["ingress"]}, True),
        ({"clientNamespaces": ["search"]}, {"httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]}}, True),
        ({"clientCidrs": ["10.0.0.0/16"]}, {"ingress": CLUSTERS["ALB"]["ingress"]}, False),
    ],
)
def test_a_load_balancer_may_connect_unless_lists_say_who_may(lists: Object, route: Object, is_open: bool) -> None:
    (rule,) = policy_of(rendered_with({"networkPolicy": lists, **route}), "sidecar")["ingress"]
    assert ("from" not in rule) == is_open


def test_egress_allows_the_ports_of_urls_among_the_variables() -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://[fd00::4317]:4318/v1", "HTTPS_PROXY": "http://me:secret@proxy:3128",
        "AWS_ENDPOINT_URL": "https://s3.test", "SSL_CERT_FILE": "/ca.pem", "NO_PROXY": "10.0.0.0/8,.svc",
    }  # fmt: skip
    settings = {"schema_registry_url": "http://one:18081,http://two:18082"}
    found = rendered_with({"environment": variables, "store": {"url": ""}, "settings": settings})
    assert [rule["ports"] for rule in policy_of(found, "sidecar")["egress"]][1:] == [
        [{"port": 3128}, {"port": 4318}, {"port": 443}]
    ]
    assert {"port": 18082} in policy_of(found, "worker")["egress"][-1]["ports"]
    for pod in pods(found, *WORKLOADS).values():
        assert {"configMapRef": {"name": "streampca"}} in pod["spec"]["containers"][0]["envFrom"]
    (job,) = pods(found, "Job").values()
    assert {"name": "SSL_CERT_FILE", "value": "/ca.pem"} in job["spec"]["containers"][0]["env"]


def test_podspec_merges_into_every_pod_by_the_names_of_items() -> None:
    proxy, mount = {"name": "proxy", "image": "proxy:1"}, {"name": "tmp", "mountPath": "/cache"}
    own = {"name": "worker", "args": ["worker", "--start", "latest"], "volumeMounts": [mount], "env": [{"name": "A"}]}
    found = rendered_with(
        {
            "podSpec": {"nodeSelector": {"disk": "ssd"}, "securityContext": {"fsGroup": 7, "supplementalGroups": [9]}},
            "worker": {"podSpec": {"containers": [own, proxy], "nodeSelector": {"zone": "a"}}},
            "backfill": {"enabled": True, "sources": ["/lake"]},
        }
    )
    everywhere = pods(found, *WORKLOADS, "Job")
    assert everywhere.keys() == {"worker", "serve", "create-topics", "backfill"}
    for command, pod in everywhere.items():
        context, zone = pod["spec"]["securityContext"], {} if command == "serve" else {"zone": "a"}
        assert (context["fsGroup"], context["supplementalGroups"], context["runAsNonRoot"]) == (7, [9], True)
        assert pod["spec"]["nodeSelector"] == {"disk": "ssd", **zone}
    worker, second = everywhere["worker"]["spec"]["containers"]
    assert second == proxy
    assert (worker["args"], [m["mountPath"] for m in worker["volumeMounts"]]) == (own["args"], ["/tmp", "/cache"])  # noqa: S108
    assert [variable["name"] for variable in worker["env"]] == ["STREAMPCA_GROUP_INSTANCE_ID", "A"]
    assert worker["resources"]
