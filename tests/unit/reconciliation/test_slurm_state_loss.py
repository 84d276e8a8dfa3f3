"""What SLURM, or a ledger from a backup, does not know any more: which start of SLURM is
new, and what is not submitted.
"""

import pytest

from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.events import ChainStatusObserved, Event, ScriptFetched
from supervisor_tasks.jobs.model import ChainStatus, Job, State
from supervisor_tasks.jobs.state_machine import advance
from supervisor_tasks.jobs.submission_rules import require_never_ran
from supervisor_tasks.ledger.facts import SlurmStart
from supervisor_tasks.slurm.cluster_identity import parse_cluster_identity
from supervisor_tasks.slurm.interface import Controller
from supervisor_tasks.slurm.parsers import CommandAnswer, next_id
from supervisor_tasks.slurm_lookup.cluster_check import (
    JUST_STARTED_S,
    first_id,
    is_unrecorded_start,
)
from tests.support.job_histories import CLAIM
from tests.support.slurm_samples import recorded


def test_is_unrecorded_start__a_new_start__or_one_whose_silence_is_not_known() -> None:
    assert is_unrecorded_start("100", None, None)
    assert is_unrecorded_start("200", "100", SlurmStart("100", 20.0))
    assert is_unrecorded_start("100", "100", None)
    assert not is_unrecorded_start("100", "100", SlurmStart("100", 20.0))


def after(*events: Event) -> Job:
    job = None
    for event in events:
        job, _ = advance(job, event)
    assert job is not None
    assert job.state is State.READY
    return job


def test_require_never_ran__restored_and_read_again_by_the_scan__is_not_submitted() -> (
    None
):
    script = ScriptFetched("#!/bin/bash\n", "")
    require_never_ran(after(CLAIM, script))
    for events in (
        (CLAIM, ChainStatusObserved(ChainStatus.RUNNING), script),
        (CLAIM, script, ChainStatusObserved(ChainStatus.RUNNING)),
    ):
        with pytest.raises(TransientError, match="ran"):
            require_never_ran(after(*events))


def test_first_id__any_slurmctld__is_known_only_just_after_its_start() -> None:
    config = recorded("scontrol-show-config")
    assert (next_id(config), next_id(CommandAnswer(0, "", ""))) == (1, 0)
    started = Controller("1000", False, parse_cluster_identity(config), 700)
    assert first_id(started, 1000 + JUST_STARTED_S) == 700
    assert first_id(started, 1001 + JUST_STARTED_S) == 0
    assert (
        first_id(
            Controller(
                "2026-01-01T00:00:00", False, parse_cluster_identity(config), 700
            ),
            1000,
        )
        == 0
    )
