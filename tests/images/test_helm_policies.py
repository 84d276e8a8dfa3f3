"""The chart's NetworkPolicies: which pods and networks may reach which port."""

import pytest

from tests.images.charts import VALUES, named

OURS = {"app.kubernetes.io/name": "grid-supervisor", "app.kubernetes.io/instance": "grid"}


def test_servers__of_the_chart__are_reached_from_our_pods_only() -> None:
    policies = named("one-cluster", "NetworkPolicy")
    for server, port in (("postgres", 5432), ("redis", 6379)):
        (rule,) = policies[f"grid-{server}"]["spec"]["ingress"]
        assert rule["from"] == [{"podSelector": {"matchLabels": OURS}}]
        assert rule["ports"] == [{"port": port}]


def test_redis__of_the_chart__is_reached_by_keda_from_its_namespace() -> None:
    policies = named("everything-on", "NetworkPolicy")
    (rule,) = policies["grid-redis"]["spec"]["ingress"]
    keda = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda-system"}}}
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
    assert access["spec"]["secretTargetRef"] == [{"parameter": "password", "name": "redis", "key": "password"}]


def test_callbacks__are_reached_from_the_clusters_networks_only() -> None:
    policy = named("three-clusters", "NetworkPolicy")["grid-north-callbacks"]["spec"]
    (rule,) = policy["ingress"]
    assert [each["ipBlock"]["cidr"] for each in rule["from"]] == ["10.1.0.0/16", "fd00:1::/64"]
    assert rule["ports"] == [{"port": 3000}]
    assert policy["podSelector"]["matchLabels"]["supervisor/cluster"] == "north"


def test_callbacks__behind_an_ingress__are_reached_from_its_namespace_only() -> None:
    policy = named("three-clusters", "NetworkPolicy")["grid-south-callbacks"]["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]


@pytest.mark.parametrize("values", VALUES)
def test_callbacks__each_policy__names_those_that_may_call(values: str) -> None:
    for name, policy in named(values, "NetworkPolicy").items():
        if name.endswith("-callbacks"):
            assert all(rule["from"] for rule in policy["spec"]["ingress"]), name


def test_service__of_the_callbacks__keeps_the_callers_address() -> None:
    """Behind the source NAT of a Service, the policy sees a node's address in place of the caller's."""
    services = {name: each["spec"] for name, each in named("three-clusters", "Service").items()}
    balanced, inside, by_port = (services[f"grid-{name}-callbacks"] for name in ("north", "south", "test"))
    assert (balanced["type"], balanced["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    assert balanced["loadBalancerSourceRanges"] == ["10.1.0.0/16", "fd00:1::/64"]
    assert (by_port["type"], by_port["externalTrafficPolicy"]) == ("NodePort", "Local")
    assert inside["type"] == "ClusterIP"
    assert {"externalTrafficPolicy", "loadBalancerSourceRanges"}.isdisjoint(inside)
    assert "loadBalancerSourceRanges" not in by_port
