"""The chart's NetworkPolicies: which pods and networks may reach which port."""

import re
from typing import Any

import pytest

from tests.images.charts import VALUES, named

OURS = {
    "app.kubernetes.io/name": "grid-supervisor",
    "app.kubernetes.io/instance": "grid",
}


def test_servers__of_the_chart__are_reached_from_our_pods_only() -> None:
    policies = named("one-cluster", "NetworkPolicy")
    for server, port in (("postgres", 5432), ("redis", 6379)):
        (rule,) = policies[f"grid-{server}"]["spec"]["ingress"]
        assert rule["from"] == [{"podSelector": {"matchLabels": OURS}}]
        assert rule["ports"] == [{"port": port}]


def test_redis__of_the_chart__is_reached_by_keda_from_its_namespace() -> None:
    policies = named("everything-on", "NetworkPolicy")
    (rule,) = policies["grid-redis"]["spec"]["ingress"]
    keda = {
        "namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": "keda-system"}
        }
    }
    assert rule["from"] == [{"podSelector": {"matchLabels": OURS}}, keda]
    (rule,) = policies["grid-postgres"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": OURS}}]
    (scaled,) = named("everything-on", "ScaledObject").values()
    (trigger,) = scaled["spec"]["triggers"]
    assert (
        trigger["metadata"]["address"] == "grid-redis.default.svc:6379"
    )  # a bare name would be one of KEDA's namespace
    assert "enableTLS" not in trigger["metadata"]
    (access,) = named("everything-on", "TriggerAuthentication").values()
    assert access["spec"]["secretTargetRef"] == [
        {"parameter": "password", "name": "redis", "key": "password"}
    ]


def test_callbacks__of_one_of_three_clusters__are_reached_from_its_networks_only() -> (
    None
):
    policy = named("three-clusters", "NetworkPolicy")["grid-north-callbacks"]["spec"]
    (rule,) = policy["ingress"]
    assert [each["ipBlock"]["cidr"] for each in rule["from"]] == [
        "10.1.0.0/16",
        "fd00:1::/64",
    ]
    assert rule["ports"] == [{"port": 3000}]
    assert policy["podSelector"]["matchLabels"]["supervisor/cluster"] == "north"


def test_callbacks__behind_an_ingress__are_reached_from_its_namespace_only() -> None:
    policy = named("three-clusters", "NetworkPolicy")["grid-south-callbacks"]["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [
        {
            "namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}
            }
        }
    ]


@pytest.mark.parametrize("values", VALUES)
def test_callbacks__each_policy__names_those_that_may_call(values: str) -> None:
    for name, policy in named(values, "NetworkPolicy").items():
        if name.endswith("-callbacks"):
            assert all(rule["from"] for rule in policy["spec"]["ingress"]), name


def test_service__of_the_callbacks__keeps_the_callers_address() -> None:
    """Behind the source NAT of a Service, the policy sees a node's address in place of
    the caller's.
    """
    services = {
        name: each["spec"] for name, each in named("three-clusters", "Service").items()
    }
    balanced, inside, by_port = (
        services[f"grid-{name}-callbacks"] for name in ("north", "south", "test")
    )
    assert (balanced["type"], balanced["externalTrafficPolicy"]) == (
        "LoadBalancer",
        "Local",
    )
    assert balanced["loadBalancerSourceRanges"] == ["10.1.0.0/16", "fd00:1::/64"]
    assert (by_port["type"], by_port["externalTrafficPolicy"]) == ("NodePort", "Local")
    assert inside["type"] == "ClusterIP"
    assert {"externalTrafficPolicy", "loadBalancerSourceRanges"}.isdisjoint(inside)
    assert "loadBalancerSourceRanges" not in by_port


EACH_NAMESPACE: list[Any] = [{"namespaceSelector": {}}]
PROMETHEUS = [
    {
        "namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": "monitoring"}
        }
    }
]
CLUSTERS_NETWORKS = [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
ANYWHERE = [ANY := {"ipBlock": {"cidr": "anywhere"}}]  # a rule without `from`
# What calls each process: Prometheus asks the probes' port for metrics, and a node asks
# its own pods in spite of a policy.
CALLERS = {
    "worker-chain": {9465: PROMETHEUS},
    "worker-slurm": {9465: PROMETHEUS},
    "beat": {9466: PROMETHEUS},
    "callbacks": {9467: PROMETHEUS, 3000: CLUSTERS_NETWORKS},
    "metrics": {9464: PROMETHEUS},
    "flower": {9468: PROMETHEUS, 5555: ANYWHERE},
    "migrate": {},
}


def selected(policy: Any, labels: dict[str, str]) -> bool:
    wanted: dict[str, str] = policy["spec"]["podSelector"]["matchLabels"]
    return (
        "Ingress" in policy["spec"]["policyTypes"] and wanted.items() <= labels.items()
    )


def callers(values: str, workload: Any) -> dict[int, list[Any]]:
    """What each port of a pod is open to: the policies that select the pod add up, and
    there must be one.
    """
    template = workload["spec"]["template"]
    found: dict[int, list[Any]] = {}
    of_pod = [
        each
        for each in named(values, "NetworkPolicy").values()
        if selected(each, template["metadata"]["labels"])
    ]
    assert of_pod, workload["metadata"]["name"]
    for rule in (rule for policy in of_pod for rule in policy["spec"]["ingress"]):
        for port in rule["ports"]:
            found.setdefault(port["port"], []).extend(rule.get("from", [ANY]))
    (container,) = template["spec"]["containers"]
    listens = {each["containerPort"] for each in container.get("ports", ())}
    return {port: sources for port, sources in found.items() if port in listens}


def processes_of(values: str) -> dict[str, Any]:
    """The workloads of the supervisor's processes, by their names without the release
    and the cluster, and without the revision and the hash of the migrations' Job.
    """
    found = {**named(values, "Deployment"), **named(values, "Job")}
    return {
        re.sub(r"^grid-(main-)?(.*?)(-1-[0-9a-f]{8})?$", r"\2", name): each
        for name, each in found.items()
    }


def test_process__each__is_called_by_those_that_need_it_and_by_no_others() -> None:
    found = {
        name: callers("everything-on", each)
        for name, each in processes_of("everything-on").items()
    }
    assert found == CALLERS


def test_probes__without_a_namespace_of_prometheus__are_open_to_each_namespace() -> (
    None
):
    for name, workload in processes_of("one-cluster").items():
        for port, sources in callers("one-cluster", workload).items():
            assert sources == (CLUSTERS_NETWORKS if port == 3000 else EACH_NAMESPACE), (
                name,
                port,
            )


@pytest.mark.parametrize("values", VALUES)
def test_flower__where_there_is_none__has_no_open_port(values: str) -> None:
    there = "grid-flower" in named(values, "Deployment")
    ports = [
        port["port"]
        for policy in named(values, "NetworkPolicy").values()
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
    ]
    assert (5555 in ports) == there
