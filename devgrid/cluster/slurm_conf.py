"""The configuration files of a private SLURM, 22.05 or 24.11. Pure text."""

from dataclasses import dataclass
from pathlib import Path

# from this SLURM version on, a slurmd needs control groups or CgroupPlugin=disabled
NEEDS_CGROUPS = (24, 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLayout:
    """The shape of a private cluster."""

    folder: Path
    cluster_name: str
    controller_port: int
    node_ports: tuple[int, ...]
    cpus_per_node: int
    memory_mb: int
    gpus_per_node: int
    partition: str
    min_job_age_s: int
    accounting_port: int | None
    spank: bool = False  # whether the nodes load the project's SPANK plugin
    threads_per_core: int = 1
    # whether slurmctld uses the project's job_submit.lua, which is beside slurm.conf
    job_submit: bool = False
    also: tuple[str, ...] = ()

    @property
    def munge_socket(self) -> Path:
        """The socket of munged."""
        return self.folder / "munge" / "munge.socket"


def slurm_conf(layout: SlurmLayout) -> str:
    """slurm.conf, with the project's own hooks. If a line comes twice, SLURM takes the
    last one.
    """
    folder = layout.folder
    lines = [
        f"ClusterName={layout.cluster_name}",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={layout.controller_port}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={layout.munge_socket}",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "GresTypes=gpu",
        "SlurmdParameters=config_overrides",
        "SchedulerParameters=sched_interval=2,bf_interval=5,batch_sched_delay=0,sched_min_interval=0",
        "EnforcePartLimits=ALL",
        "MailProg=/bin/true",
        "ReturnToService=2",
        "KillWait=5",
        "MpiDefault=none",
        "SwitchType=switch/none",
        f"MinJobAge={layout.min_job_age_s}",
        f"JobCompType=jobcomp/script\nJobCompLoc={folder}/completed.sh",
        f"PrologSlurmctld={folder}/plugins/supervisor-started",
        *([f"PlugStackConfig={folder}/plugstack.conf"] if layout.spank else []),
        *(["JobSubmitPlugins=lua"] if layout.job_submit else []),
        *_accounting(layout),
        *(
            f"NodeName=node{number} NodeHostname=localhost Port={port} CPUs={layout.cpus_per_node}"
            f"{_cores(layout)} RealMemory={layout.memory_mb} Gres=gpu:{layout.gpus_per_node} State=UNKNOWN"
            for number, port in enumerate(layout.node_ports, start=1)
        ),
        f"PartitionName={layout.partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        *layout.also,
    ]
    return "\n".join(lines) + "\n"


def _cores(layout: SlurmLayout) -> str:
    """The cores of a node with several threads a core. Otherwise SLURM takes each CPU
    for a core.
    """
    if layout.threads_per_core == 1:
        return ""
    cores = layout.cpus_per_node // layout.threads_per_core
    return f" Sockets=1 CoresPerSocket={cores} ThreadsPerCore={layout.threads_per_core}"


def gres_conf(layout: SlurmLayout) -> str:
    """Fake GPUs: each is a symbolic link to /dev/null."""
    last = layout.gpus_per_node - 1
    return (
        f"Name=gpu File={layout.folder}/dev/gpu[0-{last}]\n"
        if last > 0
        else f"Name=gpu File={layout.folder}/dev/gpu0\n"
    )


def cgroup_conf(layout: SlurmLayout, version: tuple[int, ...]) -> str:
    """cgroup.conf. With TaskPlugin task/cgroup, a job that uses more memory than it
    requested is killed. Otherwise SLURM uses no control groups: slurmd of 24.11 would
    not start on a machine where it cannot make any; 22.05 does not know
    CgroupPlugin=disabled, and does not need it.
    """
    if any("task/cgroup" in line for line in layout.also):
        return "ConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nIgnoreSystemd=yes\n"
    return "CgroupPlugin=disabled\n" if version >= NEEDS_CGROUPS else ""


def plugstack_conf(layout: SlurmLayout, spool: Path) -> str:
    """plugstack.conf, with the plugin that the nodes load. `optional`: jobs run even if
    the plugin does not load.
    """
    return f"optional {layout.folder}/plugins/spank_supervisor.so spool={spool}\n"


def slurmdbd_conf(layout: SlurmLayout, storage_port: int) -> str:
    """slurmdbd.conf. SLURM requires mode 600."""
    folder = layout.folder
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={layout.munge_socket}",
            "DbdHost=localhost",
            f"DbdPort={layout.accounting_port}",
            "SlurmUser=root",
            f"PidFile={folder}/slurmdbd.pid",
            f"LogFile={folder}/slurmdbd.log",
            "StorageType=accounting_storage/mysql",
            "StorageHost=127.0.0.1",
            f"StoragePort={storage_port}",
            "StorageUser=slurm",
            "StorageLoc=slurm_acct_db",
            "",
        ]
    )


def _accounting(layout: SlurmLayout) -> list[str]:
    if layout.accounting_port is None:
        return [
            "AccountingStorageType=accounting_storage/none",
            "JobAcctGatherType=jobacct_gather/none",
        ]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=localhost",
        f"AccountingStoragePort={layout.accounting_port}",
        f"AccountingStoragePass={layout.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
        "JobAcctGatherType=jobacct_gather/none",
    ]
