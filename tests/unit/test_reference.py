"""docs/reference/: generated from the code, complete, and never stale."""

import ast
from pathlib import Path

import pytest

from supervisor_tasks.alarms.alarm_meanings import MEANINGS
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.jobs.events import Event, ScriptFetched, Submitted
from supervisor_tasks.jobs.model import State
from supervisor_tasks.jobs.state_machine import RULES
from supervisor_tasks.ledger.switch_names import Switch
from tests.support import reference
from tests.support.reference import (
    commands,
    log_events,
    module_index,
    settings,
    source,
    states,
)

# passes the names of its callers on
RATE_LIMITED = "grpc_callbacks/rate_limited_log.py"


def test_stale__changed_missing_and_unknown_files__names_them(tmp_path: Path) -> None:
    reference.write(tmp_path)
    (tmp_path / "cli.md").write_text("other")
    (tmp_path / "alarms.md").unlink()
    (tmp_path / "old.md").write_text("no page")
    assert reference.stale(tmp_path) == ["alarms.md", "cli.md", "old.md"]


def test_meanings__of_alarms_settings_states_and_switches__are_complete() -> None:
    assert MEANINGS.keys() == set(AlarmName)
    assert source.meanings(Settings).keys() >= Settings.model_fields.keys()
    assert source.meanings(State).keys() == State.__members__.keys()
    assert source.meanings(Switch).keys() == Switch.__members__.keys()


def test_settings__each__is_read_by_a_process() -> None:
    read_by = settings.processes(reference.REPOSITORY)
    assert [name for name in Settings.model_fields if not read_by[name]] == []


def test_log_calls__each__has_a_fixed_name() -> None:
    found = [
        (module, ast.unparse(call))
        for module, tree in source.modules(reference.REPOSITORY)
        for call, _, names in log_events.calls(tree)
        if not names and module != RATE_LIMITED and not module.startswith("plugins/")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('log.info("job_done", job_id=1)', ["job_done"]),
        ('self._log.warning("a_b" if ok else "c_d")', ["a_b", "c_d"]),
        ('kind = "e_f" if ok else "g_h"\nlog.info(kind)', ["e_f", "g_h"]),
        ('log.info("Listening at %s")', []),
        ('context.error("not_a_log")', []),
    ],
)
def test_log_calls__in_code__have_these_names(code: str, names: list[str]) -> None:
    found = [
        name for _, _, named in log_events.calls(ast.parse(code)) for name in named
    ]
    assert found == names


def test_commands__of_a_help__are_the_words_that_begin_its_lines() -> None:
    text = "Usage: supervisor\n\nOptions:\n  --help  Shows.\n\nCommands:\n  drain-all  Stop.\n             and start\n  job\n"
    assert commands.commands_in(text) == ["drain-all", "job"]


@pytest.mark.parametrize(
    ("event", "state", "after", "effects"),
    [
        (ScriptFetched, State.CLAIMED, {"READY"}, {"SUBMIT"}),
        (Submitted, State.SUBMITTING, {"QUEUED"}, {"POLL_SLURM", "CANCEL", "TOP_UP"}),
    ],
)
def test_rule__of_an_event_in_a_state__names_its_states_and_effects(
    event: type[Event], state: State, after: set[str], effects: set[str]
) -> None:
    ((_, rule),) = RULES[event, state]
    assert states.found_in(rule) == (frozenset(after), frozenset(effects))


def test_module_index__a_module__has_its_text_and_the_tests_that_import_it() -> None:
    tests = module_index.importers(reference.REPOSITORY)
    assert "unit/test_reference.py" in tests["supervisor_tasks/jobs/state_machine.py"]
    assert "unit/test_reference.py" not in tests["supervisor_tasks/jobs/billing.py"]
    text = module_index.page(reference.REPOSITORY)
    assert "| `billing.py` | " in text
    assert "`unit/jobs/test_billing.py`" in text
