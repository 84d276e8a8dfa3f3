"""Which probes are run: all of them for `supervisor doctor`, those of a process's
settings for `supervisor config check`.
"""

import logging
from collections.abc import Mapping, Sequence

from supervisor_tasks.config.needs import SlurmAccess
from supervisor_tasks.config.settings import Settings, SettingsError
from supervisor_tasks.config.variables import mistyped
from supervisor_tasks.doctor import (
    chain_probes,
    grid_probes,
    ledger_probes,
    slurm_probes,
)
from supervisor_tasks.doctor.check_results import Finding
from supervisor_tasks.doctor.probe_context import ProbeContext, readable_settings
from supervisor_tasks.doctor.probe_runner import Probe, deadline_s, examine
from supervisor_tasks.doctor.verdicts import mistyped_verdicts, settings_verdicts

ALL: tuple[Probe[ProbeContext], ...] = (
    *ledger_probes.SERVERS,
    *ledger_probes.FLEET,
    *chain_probes.SETTINGS,
    *chain_probes.FLEET,
    *slurm_probes.SETTINGS,
    *slurm_probes.FLEET,
    *grid_probes.SETTINGS,
    *grid_probes.FLEET,
)
OF_PROCESS: Mapping[str, tuple[Probe[ProbeContext], ...]] = {
    "worker": (
        *ledger_probes.SERVERS,
        *chain_probes.SETTINGS,
        *slurm_probes.SETTINGS,
        *grid_probes.SETTINGS,
    ),
    "chain": (*ledger_probes.SERVERS, *chain_probes.SETTINGS, *grid_probes.SETTINGS),
    "slurm": (*ledger_probes.SERVERS, *slurm_probes.SETTINGS),
    "callbacks": ledger_probes.SERVERS,
    "beat": ledger_probes.SERVERS,
    "flower": ledger_probes.SERVERS,
    "metrics": ledger_probes.LEDGER,
    "reporter": grid_probes.CALLBACKS_SERVED,
}


def check_up(
    environment: Mapping[str, str], customer: str | None, within_s: float | None = None
) -> list[Finding]:
    """Run all probes with the settings of an environment. Ends after `within_s`, also
    if nothing answers; without it, early enough for the command to answer within 10 s.
    """
    _quiet()
    until_s = deadline_s(within_s)
    try:
        settings, lines = readable_settings(environment)
    except SettingsError as error:
        return settings_verdicts("this environment", error.lines)
    of_settings = settings_verdicts("this environment", lines) + mistyped_verdicts(
        mistyped(environment)
    )
    return of_settings + _examine(
        _with_transport(ALL, settings), ProbeContext(settings, until_s, customer)
    )


def try_settings(settings: Settings, process: str) -> Sequence[Finding]:
    """Run the probes of what a process's settings name: servers, endpoints, the login
    node and SLURM's commands.
    """
    _quiet()
    until_s = deadline_s(None)
    return _examine(
        _with_transport(OF_PROCESS[process], settings), ProbeContext(settings, until_s)
    )


def _with_transport(
    probes: Sequence[Probe[ProbeContext]], settings: Settings
) -> list[Probe[ProbeContext]]:
    """Return the probes with those of slurmrestd in place of those of the login node,
    where SLURM_TRANSPORT is rest.
    """
    over_ssh = (*slurm_probes.SETTINGS, *slurm_probes.FLEET)
    others = [probe for probe in probes if probe not in over_ssh]
    has_slurm = len(others) < len(probes)
    if settings.slurm_access is SlurmAccess.REST and has_slurm:
        return [*others, *slurm_probes.OVER_REST]
    return list(probes)


def _examine(
    probes: Sequence[Probe[ProbeContext]], shared: ProbeContext
) -> list[Finding]:
    try:
        return examine(probes, shared, shared.until_s)
    finally:
        shared.close()


def _quiet() -> None:
    """Let libraries log nothing between the findings: paramiko logs the traceback of a
    login that fails.
    """
    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
