"""The chart: linted, rendered with six values files, each manifest judged by the API's
schemas and compared with golden files.

`GOLDEN=write make images-test` writes the golden files again.
"""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from devgrid import REPOSITORY
from supervisor_tasks.cli.run_command import PROCESSES
from supervisor_tasks.config.needs import SlurmAccess, required_with
from supervisor_tasks.config.settings import IN_FILES, Settings
from supervisor_tasks.messaging.queues import Queue
from tests.images.charts import (
    CHART,
    FILES,
    HELM,
    KUBERNETES,
    VALUES,
    helm,
    manifests,
    named,
    pods,
    processes,
    rendered,
    servers,
)
from tests.support.env_example import SITE_SETTINGS

DATA = REPOSITORY / "tests" / "data" / "crds"
DOCKERFILE = (REPOSITORY / "docker" / "Dockerfile").read_text()
IMAGE_VARIABLES = dict(
    re.findall(r"^(?:ENV| ) *([A-Z_]+)=(\S+)", DOCKERFILE, re.MULTILINE)
)
PEM_FILES = {name for name, field in Settings.model_fields.items() if name.endswith(("_ca", "_ca_path")) or name in (
    "broker_cert", "broker_key")}  # fmt: skip
# Of custom resources, by kind; the operator's version is in the file's name.
SCHEMAS = {
    file.name.partition("-")[0]: json.loads(file.read_text())
    for file in DATA.glob("*.json")
}


@pytest.mark.parametrize("values", VALUES)
def test_lint__each_values_file__finds_nothing(values: str) -> None:
    helm("lint", str(FILES / "values" / f"{values}.yaml"), "--strict", "--quiet")


@pytest.mark.parametrize("values", VALUES)
def test_manifest__each__is_one_that_the_api_takes(values: str) -> None:
    for manifest in manifests(values):
        if manifest["kind"] in SCHEMAS:
            jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])
            manifest = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": manifest["metadata"],
            }
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


CUSTOM = [
    each
    for each in yaml.safe_load_all(
        (FILES / "golden" / "everything-on.yaml").read_text()
    )
    if each["kind"] in SCHEMAS
]


@pytest.mark.parametrize("manifest", CUSTOM, ids=lambda manifest: manifest["kind"])
def test_schema__of_each_custom_resource__refuses_what_it_does_not_know(
    manifest: Any,
) -> None:
    assert {each["kind"] for each in CUSTOM} == set(SCHEMAS)
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])
    for wrong in (
        {**manifest, "spec": {**manifest["spec"], "unknown": 1}},
        {**manifest, "apiVersion": "example.com/v1"},
        {**manifest, "spec": None},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMAS[manifest["kind"]])


@pytest.mark.parametrize("values", VALUES)
def test_manifests__of_each_values_file__are_those_of_the_golden_file(
    values: str,
) -> None:
    golden, found = FILES / "golden" / f"{values}.yaml", rendered(values)
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(found)
    assert found == golden.read_text()


@pytest.mark.parametrize("values", VALUES)
def test_names__of_all_manifests__are_unique_within_each_kind(values: str) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests(values)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("values", VALUES)
def test_pod__each__is_confined(values: str) -> None:
    for name, pod in pods(values):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["runAsUser"] > 0, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, (
            name
        )
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"], name


def written(pod: Any) -> list[dict[str, Any]]:
    """The mounts that a pod's container may write to."""
    return [
        each
        for each in pod["containers"][0]["volumeMounts"]
        if not each.get("readOnly")
    ]


@pytest.mark.parametrize("values", VALUES)
def test_process__each__writes_to_one_volume(values: str) -> None:
    """It is the folder that the image says, with STATE_DIR, HOME and TMPDIR in it."""
    for name, pod in processes(values):
        (container,) = pod["containers"]
        assert container["args"][0] in PROCESSES, name
        assert written(pod) == [
            {"name": "state", "mountPath": IMAGE_VARIABLES["HOME"]}
        ], name
        assert {
            "name": "state",
            "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"},
        } in pod["volumes"], name
        assert "STATE_DIR" not in {each["name"] for each in container.get("env", ())}, (
            name
        )


@pytest.mark.parametrize("values", ["one-cluster", "everything-on"])
def test_server__each__writes_to_its_data_and_to_memory(values: str) -> None:
    found = servers(values)
    assert set(found) == {"grid-postgres", "grid-redis"}
    for name, pod in found.items():
        mounted = [(each["name"], each["mountPath"]) for each in written(pod)]
        assert mounted == [
            ("data", "/data"),
            ("run", "/var/run/postgresql"),
            ("run", "/tmp"),
        ], name
        assert {
            "name": "run",
            "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"},
        } in pod["volumes"], name


def test_image__its_state_folder_home_and_temporary_files__are_in_its_volume() -> None:
    volume = IMAGE_VARIABLES["HOME"]
    assert f"VOLUME {volume}\n" in DOCKERFILE
    assert (IMAGE_VARIABLES["TMPDIR"], Path(IMAGE_VARIABLES["STATE_DIR"]).parent) == (
        volume,
        Path(volume),
    )


LIBPQ = {
    "PGSSLROOTCERT": "database_ca",
    "PGSSLCERT": "database_cert",
    "PGSSLKEY": "database_key",
}


@pytest.mark.parametrize("values", VALUES)
def test_variables__are_settings__and_secrets_are_files(values: str) -> None:
    for name, pod in processes(values):
        given = {each["name"] for each in pod["containers"][0]["env"]}
        files = {
            each.removesuffix("_FILE").lower()
            for each in given
            if each.endswith("_FILE")
        }
        assert files <= set(IN_FILES), name
        others = {each for each in given - LIBPQ.keys() if not each.endswith("_FILE")}
        assert {each.lower() for each in others} <= set(Settings.model_fields), name
    for config in named(values, "ConfigMap").values():
        if config["metadata"]["name"].endswith("-settings"):
            assert {each.lower() for each in config["data"]} <= set(
                Settings.model_fields
            )


def test_keys__everything_on__are_only_in_the_pods_that_work_with_them() -> None:
    holders: dict[str, set[str]] = {}
    for name, pod in processes("everything-on"):
        for source in pod["volumes"][0]["projected"]["sources"]:
            for item in source["secret"]["items"]:
                holders.setdefault(item["path"], set()).add(name)
    assert holders["eth_private_key"] == {"grid-main-worker-chain"}
    assert (
        holders["slurm_ssh_private_key"]
        == holders["slurm_submit_key"]
        == {"grid-main-worker-slurm"}
    )
    assert holders["database_url"] - holders["broker_url"] == {
        "grid-main-metrics",
        *(name for name in holders["database_url"] if "-migrate" in name),
    }
    assert holders["callback_key"] == holders["tls.key"] == {"grid-main-callbacks"}
    assert holders["flower_basic_auth"] == {"grid-flower"}
    workers = {"grid-main-worker-chain", "grid-main-worker-slurm"}
    assert (
        holders["ldap_bind_dn"]
        == holders["ldap_bind_password"]
        == {"grid-main-worker-chain"}
    )
    # by it, beat has accounts made, and the health checks ask whether they are
    assert holders["ldap_url"] == {
        "grid-main-worker-chain",
        "grid-main-beat",
        "grid-main-metrics",
    }
    assert (
        holders["metascheduler_endpoint_rpc"]
        == holders["sbatch_ca"]
        == holders["notify_slack_url"]
        == workers
    )
    assert holders["otel_exporter_otlp_endpoint"] == {*workers, "grid-main-callbacks"}


def test_secrets__each_of_the_settings__can_be_one_of_kubernetes() -> None:
    given = {
        each["name"]
        for values in VALUES
        for _, pod in processes(values)
        for each in pod["containers"][0]["env"]
    }
    schema = (CHART / "values.schema.json").read_text()
    possible = {
        name
        for name in IN_FILES
        if f"{name.upper()}_FILE" in given or f'"{name}"' in schema
    }
    assert set(IN_FILES) == possible
    assert [name for name in PEM_FILES if f'"{name}"' not in schema] == []


def test_broker__with_its_own_authority__is_trusted_by_each_process() -> None:
    for name, pod in processes("external-servers"):
        variables = {
            each["name"]: each["value"] for each in pod["containers"][0]["env"]
        }
        if "BROKER_URL_FILE" in variables:
            held = _paths(pod)
            for file in ("broker_ca", "broker_cert", "broker_key"):
                assert variables[file.upper()] == f"/run/secrets/supervisor/{file}", (
                    name
                )
                assert file in held, name


def test_postgres__of_the_chart__has_connections_for_a_fleet() -> None:
    (container,) = servers("one-cluster")["grid-postgres"]["containers"]
    assert container["args"] == ["-c", "max_connections=200"]
    assert "command" not in container  # the image's, which makes the database
    file = FILES / "values" / "one-cluster.yaml"
    more = helm("template", str(file), "--set", "postgres.maxConnections=400").stdout
    assert "max_connections=400" in more


def test_redis__its_password__is_on_no_command_line() -> None:
    server = named("everything-on", "StatefulSet")["grid-redis"]
    shell = server["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    program, _, told = shell.partition("<<END\n")
    assert program == "exec redis-server - "
    assert told.startswith("requirepass $(cat /run/secrets/server/password)\n")


def test_cluster__over_slurmrestd__has_its_key_in_the_slurm_worker_and_no_ssh_key() -> (
    None
):
    found = dict(processes("three-clusters"))
    keys = {
        name: set(_paths(pod))
        for name, pod in found.items()
        if name.startswith("grid-test-")
    }
    assert {name for name, held in keys.items() if "slurm_jwt_key" in held} == {
        "grid-test-worker-slurm"
    }
    assert not [name for name, held in keys.items() if "slurm_ssh_private_key" in held]
    variables = {
        each["name"]: each["value"]
        for each in found["grid-test-worker-slurm"]["containers"][0]["env"]
    }
    assert variables["SLURMRESTD_CA"] == "/run/secrets/supervisor/slurmrestd_ca"
    assert "slurm_ssh_ca_key" in _paths(found["grid-south-worker-slurm"])


@pytest.mark.parametrize("values", VALUES)
def test_pod__each_that_stays__is_asked_whether_it_lives(values: str) -> None:
    for name, pod in processes(values):
        (container,) = pod["containers"]
        if container["args"][0] != "migrate":
            asked = {
                kind: container[f"{kind}Probe"]["httpGet"]["path"]
                for kind in ("startup", "liveness", "readiness")
            }
            assert asked == {
                "startup": "/livez",
                "liveness": "/livez",
                "readiness": "/readyz",
            }, name


@pytest.mark.parametrize(
    ("server", "program"),
    [("grid-postgres", "pg_isready"), ("grid-redis", "redis-cli ping")],
)
def test_server__each__is_asked_whether_it_lives(server: str, program: str) -> None:
    (container,) = servers("everything-on")[server]["containers"]
    probes = {
        kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")
    }
    assert all(
        program in " ".join(probe["exec"]["command"]) for probe in probes.values()
    )
    assert probes["startup"]["exec"] == probes["liveness"]["exec"]
    # One slow answer of a busy server is no reason for a restart.
    assert (
        probes["liveness"]["failureThreshold"] * probes["liveness"]["periodSeconds"]
        >= 60
    )
    assert probes["liveness"]["timeoutSeconds"] >= 5


@pytest.mark.parametrize(
    ("status", "alive"), [(0, True), (1, True), (2, False), (3, False)]
)
def test_postgres__that_recovers_and_refuses_connections__lives(
    status: int, alive: bool, tmp_path: Path
) -> None:
    """`pg_isready` ends with 1 then, and with 2 if nothing answers."""
    program = tmp_path / "pg_isready"
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)
    command = servers("one-cluster")["grid-postgres"]["containers"][0]["livenessProbe"][
        "exec"
    ]["command"]
    done = subprocess.run(
        command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False
    )
    assert (done.returncode == 0) == alive


def test_keda__of_a_broker_with_tls__has_its_authority_and_certificate() -> None:
    (scaled,) = named("external-servers", "ScaledObject").values()
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["address"] == "redis.example.com:6380"
    assert trigger["metadata"]["enableTLS"] == "true"
    (access,) = named("external-servers", "TriggerAuthentication").values()
    read = {
        each["parameter"]: (each["name"], each["key"])
        for each in access["spec"]["secretTargetRef"]
    }
    files = {name: ("broker", f"broker_{name}") for name in ("ca", "cert", "key")}
    login = {name: ("broker-password", name) for name in ("username", "password")}
    assert read == files | login
    assert trigger["metadata"]["databaseIndex"] == "2"


def test_pod__of_a_postgres_with_a_private_authority__has_its_certificates() -> None:
    """`wait` and the migration connect to it, too."""
    pods = [
        (name, pod)
        for name, pod in processes("external-servers")
        if name != "grid-flower"
    ]
    assert "grid-migrate" in {name for name, _ in pods}
    for name, pod in pods:
        (sources,) = [
            volume["projected"]["sources"]
            for volume in pod["volumes"]
            if "projected" in volume
        ]
        mounted = {
            item["path"]: source["secret"]["name"]
            for source in sources
            for item in source["secret"]["items"]
        }
        assert {mounted[key] for key in LIBPQ.values()} == {"ledger"}, name
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            variables = {each["name"]: each.get("value") for each in container["env"]}
            for variable, key in LIBPQ.items():
                assert variables[variable] == f"/run/secrets/supervisor/{key}", name


def test_flower__with_a_role_that_only_reads__has_no_key_of_the_role_that_writes() -> (
    None
):
    (flower,) = [
        pod for name, pod in processes("external-servers") if name == "grid-flower"
    ]
    variables = {each["name"] for each in flower["containers"][0]["env"]}
    assert variables & LIBPQ.keys() == {"PGSSLROOTCERT"}
    keys = {
        item["key"]: source["secret"]["name"]
        for source in flower["volumes"][0]["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    assert keys["database_url"] == "flower-reads"
    assert "database_key" not in keys


def test_flower__settings_of_every_cluster__are_given_to_it() -> None:
    settings = named("everything-on", "ConfigMap")["grid-settings"]["data"]
    assert settings["EXPLORER_URL"] == "https://explorer.example.com/tx/{hash}"
    (flower,) = [
        pod for name, pod in processes("everything-on") if name.endswith("-flower")
    ]
    assert flower["containers"][0]["envFrom"] == [
        {"configMapRef": {"name": "grid-settings"}}
    ]


def test_keda__of_a_broker_with_a_public_authority__uses_tls_if_told(
    tmp_path: Path,
) -> None:
    values = yaml.safe_load((FILES / "values" / "external-servers.yaml").read_text())
    values["broker"]["tlsKeys"], values["keda"]["tls"] = [], True
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    found = {
        each["kind"]: each
        for each in yaml.safe_load_all(helm("template", str(file)).stdout)
    }
    assert (
        found["ScaledObject"]["spec"]["triggers"][0]["metadata"]["enableTLS"] == "true"
    )
    read = found["TriggerAuthentication"]["spec"]["secretTargetRef"]
    assert [each["parameter"] for each in read] == ["username", "password"]


FLAGS = {
    "ServiceMonitor": "serviceMonitor",
    "PodMonitor": "serviceMonitor",
    "PrometheusRule": "prometheusRule",
    "ScaledObject": "keda",
    "TriggerAuthentication": "keda",
    "NetworkPolicy": "networkPolicies",
    "PodDisruptionBudget": "podDisruptionBudgets",
    "ServiceAccount": "serviceAccount",
}


@pytest.mark.parametrize(("kind", "flag"), FLAGS.items())
def test_flag__of_each_optional_kind__decides_whether_it_is_there(
    kind: str, flag: str, tmp_path: Path
) -> None:
    assert named("everything-on", kind)
    values = yaml.safe_load((FILES / "values" / "everything-on.yaml").read_text())
    switch = "create" if flag == "serviceAccount" else "enabled"
    values[flag] = {**values.get(flag, {}), switch: False}
    without = tmp_path / "values.yaml"
    without.write_text(yaml.safe_dump(values))
    kinds = {
        each["kind"]
        for each in yaml.safe_load_all(helm("template", str(without)).stdout)
        if each
    }
    assert kind not in kinds
    assert "Deployment" in kinds


def test_dashboard__by_its_flag__is_a_config_map() -> None:
    name = "grid-supervisor-dashboard"
    found = named("everything-on", "ConfigMap")[name]
    assert (
        found["data"]["grid-supervisor.json"]
        == (CHART / "files" / "dashboard.json").read_text()
    )
    assert name not in named("one-cluster", "ConfigMap")


def test_scaled_object__everything_on__counts_the_queue_of_the_slurm_workers() -> None:
    (scaled,) = named("everything-on", "ScaledObject").values()
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["listName"] == Queue.SLURM.of("main")
    worker = named("everything-on", "Deployment")[
        scaled["spec"]["scaleTargetRef"]["name"]
    ]
    assert "replicas" not in worker["spec"]  # KEDA's


@pytest.mark.parametrize(
    ("values", "secret"), [("everything-on", "flower-reads"), ("three-clusters", None)]
)
def test_flower__its_database__is_that_of_a_role_of_its_own_if_it_has_one(
    values: str, secret: str | None
) -> None:
    found = dict(processes(values))
    named_by = {name: _secret_with(pod, "database_url") for name, pod in found.items()}
    of_others = {
        secret for name, secret in named_by.items() if name != "grid-flower" and secret
    }
    assert named_by["grid-flower"] == (secret or of_others.pop())


def _paths(pod: Any) -> list[str]:
    """The files of secrets that a pod has."""
    return [
        item["path"]
        for source in pod["volumes"][0]["projected"]["sources"]
        for item in source["secret"]["items"]
    ]


def _secret_with(pod: Any, key: str) -> str | None:
    for source in pod["volumes"][0]["projected"]["sources"]:
        if any(item["path"] == key for item in source["secret"]["items"]):
            return str(source["secret"]["name"])
    return None


def test_clusters__each__has_its_own_fleet_and_its_own_queues() -> None:
    deployments = named("three-clusters", "Deployment")
    for cluster in ("north", "south", "test"):
        parts = {
            name.removeprefix(f"grid-{cluster}-")
            for name in deployments
            if name.startswith(f"grid-{cluster}-")
        }
        assert parts == {"worker-chain", "worker-slurm", "beat", "callbacks", "metrics"}
        chain = deployments[f"grid-{cluster}-worker-chain"]["spec"]
        assert (chain["replicas"], chain["strategy"]) == (1, {"type": "Recreate"})
        assert chain["template"]["spec"]["containers"][0]["args"] == [
            "worker",
            "-Q",
            f"{cluster}.chain",
        ]
    assert deployments["grid-north-worker-slurm"]["spec"]["replicas"] == 3
    assert len([name for name in deployments if name.endswith("flower")]) == 1
    levels = {
        name: config["data"]["LOG_LEVEL"]
        for name, config in named("three-clusters", "ConfigMap").items()
    }
    assert levels == {
        "grid-north-settings": "debug",
        "grid-south-settings": "info",
        "grid-test-settings": "debug",
        "grid-settings": "debug",
    }


def test_service__of_the_callbacks__speaks_h2c_where_an_ingress_ends_tls() -> None:
    services = named("three-clusters", "Service")
    assert (
        services["grid-south-callbacks"]["spec"]["ports"][0]["appProtocol"]
        == "kubernetes.io/h2c"
    )
    assert "appProtocol" not in services["grid-north-callbacks"]["spec"]["ports"][0]


@pytest.mark.parametrize("values", VALUES)
def test_pod__that_needs_tables__waits_for_them_before_it_starts(values: str) -> None:
    """So an installation that waits for its pods does not wait for a migration that
    waits for them.
    """
    for name, pod in processes(values):
        waiting = pod.get("initContainers", [])
        if "-migrate" in name or name.endswith("-flower"):
            assert waiting == [], name
            continue
        (first,), (container,) = waiting, pod["containers"]
        assert (first["name"], first["args"]) == ("wait", ["wait"])
        alike = ("image", "imagePullPolicy", "securityContext", "volumeMounts")
        assert [first[each] for each in alike] == [container[each] for each in alike], (
            name
        )
        others = LIBPQ.keys() if values == "external-servers" else set()
        assert {each["name"] for each in first["env"]} == {
            "CLUSTER_NAME",
            "DATABASE_URL_FILE",
        } | others, name


def test_migration__with_the_charts_postgres__is_a_job_of_the_release() -> None:
    """A hook before an upgrade would wait for a Postgres that the upgrade brings."""
    (job,) = named("one-cluster", "Job").values()
    assert "annotations" not in job["metadata"]
    upgraded = helm(
        "template", str(FILES / "values" / "one-cluster.yaml"), "--is-upgrade"
    ).stdout
    assert "helm.sh/hook" not in upgraded
    (container,) = job["spec"]["template"]["spec"]["containers"]
    # its Postgres starts at the same time
    assert container["args"] == ["migrate", "--wait-s=600"]
    assert list(named("external-servers", "Job")) == ["grid-migrate"]


def test_migration__its_name__changes_with_what_it_runs() -> None:
    """A Job cannot be changed, and `helm template`, as Argo CD uses it, gives each
    release the revision 1.
    """
    values = str(FILES / "values" / "one-cluster.yaml")
    names = []
    for tag in ("one", "two", "two"):
        made = helm("template", values, "--set", f"image.tag={tag}").stdout
        names += re.findall("name: (grid-migrate-1-[0-9a-f]{8})\n", made)
    first, second, again = names
    assert first != second == again


def test_migrations__with_an_external_postgres__run_before_an_upgrade() -> None:
    job = named("external-servers", "Job")["grid-migrate"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert (
        job["spec"]["template"]["spec"]["serviceAccountName"] == "default"
    )  # ours is not there before an installation


def test_settings__of_a_cluster__count_before_the_sites_also_if_false() -> None:
    settings = named("three-clusters", "ConfigMap")
    assert {
        name: settings[f"grid-{name}-settings"]["data"]["SLURM_ACCOUNTING"]
        for name in ("north", "south", "test")
    } == {"north": "true", "south": "true", "test": "false"}


def test_ssh_key__changed__restarts_the_slurm_workers(tmp_path: Path) -> None:
    """The gRPC process gives sshd the new one at once."""
    values = (FILES / "values" / "three-clusters.yaml").read_text()
    file = tmp_path / "values.yaml"
    file.write_text(values.replace("AAAA north", "BBBB north"))

    def pods_of(path: Path) -> dict[str, Any]:
        manifests = yaml.safe_load_all(helm("template", str(path)).stdout)
        return {
            each["metadata"]["name"]: each["spec"]["template"]
            for each in manifests
            if each["kind"] == "Deployment"
        }

    before = pods_of(FILES / "values" / "three-clusters.yaml")
    after = pods_of(file)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"grid-north-callbacks", "grid-north-worker-slurm"}


def test_clusters__of_names_of_their_own__are_taken(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    other = CLUSTER.replace("name: main", "name: other")
    file.write_text(
        f"clusters: [{{{CLUSTER}, {NETWORKS}}}, {{{other}, {NETWORKS}}}]\n{OTHERS}"
    )
    helm("template", str(file))


def test_manifests__no_cluster__are_none() -> None:
    assert manifests("nothing") == []


def test_manifests__everything_off__are_a_fleet_and_nothing_else() -> None:
    """Every flag of the chart is false in the values file, and the fleet is that of the
    cluster.
    """
    given = yaml.safe_load((FILES / "values" / "everything-off.yaml").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    flags = {
        name: set(each) & {"enabled", "create"}
        for name, each in defaults.items()
        if isinstance(each, dict)
    }
    switches = [(name, flag) for name, found in flags.items() for flag in found]
    assert len(switches) == 11
    assert not any(given[name][flag] for name, flag in switches)
    kinds = Counter(each["kind"] for each in manifests("everything-off"))
    assert kinds == {"ConfigMap": 1, "Deployment": 5, "Service": 2}
    assert {pod["serviceAccountName"] for _, pod in processes("everything-off")} == {
        "default"
    }


SETTINGS = {
    "PUBLIC_ADDRESS": "supervisor.example.com:3000",
    "SBATCH_ENDPOINT": "sbatch.example.com:443",
    "SLURM_SSH_ADDRESS": "login.example.com:22",
    "SLURM_SSH_ADMIN_USER": "root",
}
CLUSTER = (
    "name: main, wallet: {existingSecret: a}, ssh: {existingSecret: a}, sshPublicKey: ssh-x, "
    f"settings: {json.dumps(SETTINGS)}"
)
NETWORKS = "callbacks: {networks: [10.0.0.0/8]}"
OTHERS = "database: {existingSecret: a}\nbroker: {existingSecret: b}\n"


def test_callbacks__without_network_policies__need_no_networks(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(
        f"clusters: [{{{CLUSTER}}}]\n{OTHERS}networkPolicies: {{enabled: false}}\n"
    )
    assert "NetworkPolicy" not in helm("template", str(file)).stdout


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("clusters: [{name: Main}]", "name"),
        ("settings: {ETH_PRIVATE_KEY: abc}", "ETH_PRIVATE_KEY"),
        # each process answers its probes at a port of its own, which the chart gives it
        ('settings: {HEALTH_ADDRESS: ":9999"}', "HEALTH_ADDRESS"),
        ('settings: {METRICS_ADDRESS: ":9999"}', "METRICS_ADDRESS"),
        (
            'clusters: [{name: main, wallet: {existingSecret: a}, settings: {HEALTH_ADDRESS: ":9999"}}]',
            "HEALTH_ADDRESS",
        ),
        (
            "settings: {METASCHEDULER_CPU_PRICE_PER_MIN: 950000000000000000}",
            "'/settings/METASCHEDULER_CPU_PRICE_PER_MIN': got number, want boolean or string",
        ),
        ("flower: {enabled: true}", "existingSecret"),
        ("keda: {enabled: true, redisAddress: redis}", "redisAddress"),
        ("replicaCount: 2", "replicaCount"),
        (f"clusters: [{{{CLUSTER}}}]", "callbacks"),
        (f"clusters: [{{{CLUSTER}, callbacks: {{replicas: 2}}}}]", "networks"),
        (f"clusters: [{{{CLUSTER}, callbacks: {{networks: []}}}}]", "networks"),
        (
            f"clusters: [{{{CLUSTER}, {NETWORKS}}}, {{{CLUSTER}, {NETWORKS}}}]\n{OTHERS}",
            "two entries of the name main",
        ),
        (
            f"clusters: [{{{CLUSTER}, {NETWORKS}}}]\n"
            "postgres: {enabled: true, existingSecret: a}\n"
            "database: {tlsKeys: [database_ca]}\nbroker: {existingSecret: b}\n",
            "database.tlsKeys: found some with postgres.enabled",
        ),
        (
            f"clusters: [{{{CLUSTER}, {NETWORKS}}}]\n"
            "database: {existingSecret: a}\nredis: {enabled: true, existingSecret: b}\n"
            "broker: {tlsKeys: [broker_ca]}\n",
            "broker.tlsKeys: found some with redis.enabled",
        ),
        (
            "clusters: [{name: main, wallet: {existingSecret: ''}, ssh: {existingSecret: a}, sshPublicKey: ssh-x}]",
            "wallet",
        ),
    ],
)
def test_values__that_cannot_be_meant__are_refused(
    wrong: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(wrong)
    done = helm("template", str(file), check=False)
    assert done.returncode != 0
    assert told in done.stderr


# The cluster of a values file, and the settings that it cannot do without.
DEMANDED = {
    ("three-clusters", "north"): set(SETTINGS),
    ("three-clusters", "south"): {*SETTINGS, "SLURM_SSH_CERTIFICATES"},
    ("three-clusters", "test"): {
        "PUBLIC_ADDRESS",
        "SBATCH_ENDPOINT",
        "SLURM_TRANSPORT",
        "SLURMRESTD_URL",
    },
}
ACCESS = {
    "north": SlurmAccess.SSH_KEY,
    "south": SlurmAccess.SSH_CERTIFICATES,
    "test": SlurmAccess.REST,
}


def of_cluster(values: str, cluster: str) -> Any:
    """The values with one of their clusters."""
    found = yaml.safe_load((FILES / "values" / f"{values}.yaml").read_text())
    found["clusters"] = [each for each in found["clusters"] if each["name"] == cluster]
    return found


def with_values(values: Any, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return helm("template", str(file), check=False)


@pytest.mark.parametrize(
    ("values", "cluster", "setting"),
    [(*where, name) for where, names in DEMANDED.items() for name in sorted(names)],
)
def test_cluster__without_a_setting_whose_default_is_of_no_use__is_refused(
    values: str, cluster: str, setting: str, tmp_path: Path
) -> None:
    """Without SBATCH_ENDPOINT each job would be claimed, and none would run."""
    given = of_cluster(values, cluster)
    value = given["clusters"][0]["settings"].pop(setting)
    refused = with_values(given, tmp_path)
    assert refused.returncode != 0
    told = f"found no {setting} in the settings of {cluster}; expected a value of each"
    assert told in refused.stderr
    assert "write it into this cluster's settings" in refused.stderr
    given["settings"] = given.get("settings", {}) | {setting: value}
    taken = with_values(given, tmp_path)
    assert taken.returncode == 0, taken.stderr
    given["clusters"][0]["settings"][setting] = ""  # counts before the common one
    assert told in with_values(given, tmp_path).stderr


@pytest.mark.parametrize("cluster", ACCESS)
def test_cluster__what_its_processes_need__is_demanded_by_the_chart(
    cluster: str,
) -> None:
    required = required_with(ACCESS[cluster])
    needed = {name for names in required.values() for name in names}
    plain = needed - set(IN_FILES) - {"slurm_ssh_public_key"}
    demanded = {name.lower() for name in DEMANDED["three-clusters", cluster]}
    assert plain <= demanded
    # compose asks a site for the same, beyond what has a default or is the chart's own
    asked = set(SITE_SETTINGS) - {"cluster_name", "slurm_ssh_public_key"}
    optional = {"slurm_partition"}
    over_ssh = {"slurm_ssh_address", "slurm_ssh_admin_user"}
    assert asked - optional - (over_ssh if cluster == "test" else set()) <= demanded


# --- docs/how-to/deploy.md, "Kubernetes" ----------------------------------------------

PAGE = (
    (REPOSITORY / "docs" / "how-to" / "deploy.md")
    .read_text()
    .partition("\n## Kubernetes\n")[2]
)
SITE, KEYS_OF_SLURM = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
GENERIC = re.compile(r"kubectl create secret generic (\S+) (.*)")
TLS = re.compile(r"kubectl create secret tls (\S+) ")
FROM_FILE = re.compile(r"--from-file=([\w.]+)")


@pytest.fixture
def page_values(tmp_path: Path) -> Path:
    """The values of the page after its step 6."""
    file = tmp_path / "site.yaml"
    before, cluster, after = SITE.partition("    callbacks:\n")
    file.write_text(f"{before}{KEYS_OF_SLURM}{cluster}{after}")
    return file


def test_page__each_secret_that_the_pods_mount__is_made_by_its_commands(
    page_values: Path,
) -> None:
    made = {
        (name, key)
        for name, rest in GENERIC.findall(PAGE)
        for key in FROM_FILE.findall(rest)
    }
    made |= {
        (name, key) for name in TLS.findall(PAGE) for key in ("tls.crt", "tls.key")
    }
    mounted = set()
    for manifest in yaml.safe_load_all(helm("template", str(page_values)).stdout):
        pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
        for volume in pod.get("volumes", ()):
            sources = [
                (each["secret"]["name"], each["secret"]["items"])
                for each in volume.get("projected", {}).get("sources", ())
            ]
            if "secret" in volume:
                sources.append(
                    (volume["secret"]["secretName"], volume["secret"]["items"])
                )
            mounted |= {
                (name, item["key"]) for name, items in sources for item in items
            }
    assert made == mounted


def test_page__the_objects_that_its_commands_name__are_rendered(
    page_values: Path,
) -> None:
    found = [
        each
        for each in yaml.safe_load_all(helm("template", str(page_values)).stdout)
        if each
    ]
    names = {(each["kind"], each["metadata"]["name"]) for each in found}
    deployments = set(re.findall(r"deploy/(\S+)", PAGE))
    assert len(deployments) == 2
    services = set(re.findall(r"kubectl get service (\S+)", PAGE))
    assert names >= {("Deployment", each) for each in deployments}
    assert names >= {("Service", each) for each in services}
    (pod,) = set(re.findall(r"kubectl exec (?:-i )?(\S+-\d) ", PAGE))
    assert ("StatefulSet", pod.removesuffix("-0")) in names
    servers = re.findall(r"printf '\w+://[^@']*@([a-z-]+)", PAGE)
    assert len(servers) == 2
    assert names >= {("Service", each) for each in servers}
    types = {
        each["spec"]["type"]
        for each in found
        if each["kind"] == "Service" and each["metadata"]["name"] in services
    }
    assert types == {"LoadBalancer"}
    # what `scale` and `wait` of a restore select: processes of the clusters, not Postgres
    for each in found:
        if each["kind"] in ("Deployment", "StatefulSet"):
            labels = each["spec"]["template"]["metadata"]["labels"]
            of_cluster = "supervisor/cluster" in labels
            assert of_cluster == (each["kind"] == "Deployment"), each["metadata"][
                "name"
            ]


def test_page__the_image_that_it_pushes__is_the_one_of_the_pods(
    page_values: Path,
) -> None:
    ((version, registry),) = re.findall(r"^VERSION=(\S+) REGISTRY=(\S+)$", PAGE, re.M)
    assert "docker push $REGISTRY/grid-supervisor:$VERSION\n" in PAGE
    images = set(
        re.findall(
            r'image: "?([^"\s]+)"?$', helm("template", str(page_values)).stdout, re.M
        )
    )
    ours = {each for each in images if "supervisor" in each}
    assert ours == {f"{registry}/grid-supervisor:{version}"}


def test_page__and_the_comment_of_the_values__name_the_demanded_settings() -> None:
    commented = re.search(
        r"^# - name: main\n(?:#.*\n)*", (CHART / "values.yaml").read_text(), re.M
    )
    assert commented
    lines = re.sub("^# ", "", commented[0], flags=re.M)
    for text in (SITE, f"clusters:\n{lines}"):
        (cluster,) = yaml.safe_load(text)["clusters"]
        assert cluster["settings"] == SETTINGS


# --- NOTES.txt ------------------------------------------------------------------------


def notes(values: str, folder: Path) -> str:
    """What `helm install` prints: `helm template` leaves it out, and an installation
    asks a cluster.
    """
    chart = shutil.copytree(CHART, folder / "chart")
    text = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "NOTES.txt").unlink()
    (chart / "templates" / "_notes.tpl").write_text(
        f'{{{{- define "notes" -}}}}{text}{{{{- end }}}}'
    )
    (chart / "templates" / "notes.yaml").write_text(
        'notes: {{ include "notes" . | toJson }}\n'
    )
    argv: list[str | Path] = [
        HELM,
        "template",
        "grid",
        chart,
        "--namespace",
        "site",
        "--show-only",
        "templates/notes.yaml",
    ]
    argv += [
        "--kube-version",
        KUBERNETES,
        "--values",
        FILES / "values" / f"{values}.yaml",
    ]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return str(yaml.safe_load(done.stdout)["notes"])


@pytest.mark.parametrize("values", VALUES)
def test_notes__of_each_values_file__name_objects_that_are_there(
    values: str, tmp_path: Path
) -> None:
    told = notes(values, tmp_path)
    deployments, services = named(values, "Deployment"), named(values, "Service")
    clusters = yaml.safe_load((FILES / "values" / f"{values}.yaml").read_text())[
        "clusters"
    ]
    assert len(re.findall("^Cluster ", told, re.M)) == len(clusters)
    commands = re.findall("^ +kubectl --namespace site (.*)$", told, re.M)
    assert len(commands) == (1 + 4 * len(clusters) if clusters else 0)
    for command in commands:
        exec_in = re.fullmatch(r"exec deploy/(\S+) -- supervisor .*", command)
        service = re.fullmatch(r"get service (\S+)", command)
        assert (
            (exec_in and exec_in[1] in deployments)
            or (service and service[1] in services)
            or command == "get pods --selector app.kubernetes.io/instance=grid"
        ), command
    for cluster in clusters:
        assert cluster["settings"]["PUBLIC_ADDRESS"] in told
    assert ("no cluster" in told) == (clusters == [])
