"""The operator's command, on a real ledger."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, text

from devgrid.fleet import REPOSITORY
from devgrid.machine import deadline
from devgrid.process import wait_until
from supervisor_tasks.cli import main
from supervisor_tasks.events import ChainSaw, SlurmEnded, SlurmStarted, Submitted
from supervisor_tasks.health import periodic_work
from supervisor_tasks.job import ChainStatus, JobId, Kind, Outcome, SlurmId, State
from supervisor_tasks.journey.drain import park
from supervisor_tasks.ledger.blocks import Blocks
from supervisor_tasks.ledger.effects import OpenEffect
from supervisor_tasks.ledger.facts import REWIND, Facts
from supervisor_tasks.ledger.operator import AlarmName, Switch
from supervisor_tasks.ledger.others import OthersClaim
from supervisor_tasks.ledger.provider import Registrations
from supervisor_tasks.ledger.store import Change, Ledger
from supervisor_tasks.ledger.sweeps import WANTED, Sweeps
from supervisor_tasks.ledger.tellers import CALLBACKS, REPORTER, away, leave_signs
from supervisor_tasks.registration import Standing
from tests.ledgers import bring_to_queued, claim, emptied, job_id, migrated

HOSTILE = "no\x1b[2J\x07\nforged line [red]not markup[/red]"
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Engine, dict[str, str]]]:
    with migrated() as both:
        yield both


@pytest.fixture
def ledger(servers: tuple[Engine, dict[str, str]]) -> Iterator[Ledger]:
    engine, _ = servers
    emptied(engine)
    ledger = Ledger(engine, "here", lambda _: None)
    yield ledger
    ledger.holder.close()


@pytest.fixture
def run(servers: tuple[Engine, dict[str, str]], ledger: Ledger) -> Run:
    _, environment = servers
    environment = environment | {"METASCHEDULER_ENDPOINT_RPC": "http://127.0.0.1:1"}

    def command(*words: str, status: int = 0, typed: str = "") -> Result:
        result = CliRunner().invoke(main, words, env=environment, input=typed)
        assert result.exit_code == status, (result.output, result.exception)
        return result

    return command


def said(result: Result) -> Any:
    return json.loads(result.stdout)


def park_one(ledger: Ledger, kind: Kind = Kind.WITNESS, reason: str = "no") -> OpenEffect:
    with ledger.engine.begin() as connection:
        connection.execute(text("UPDATE effects SET due_at = now() - interval '1 s' WHERE done_at IS NULL"))
    effect = ledger.effects.lease([kind])[0]
    park(ledger, effect, reason, error="SlurmRejectedError", said=reason)
    return effect


def job_of(ledger: Ledger, number: int) -> Any:
    return ledger.jobs([job_id(number)])[job_id(number)]


def open_kinds(ledger: Ledger, number: int) -> set[str]:
    with ledger.engine.connect() as connection:
        query = text("SELECT kind FROM effects WHERE job_id = :id AND done_at IS NULL AND parked_at IS NULL")
        return set(connection.scalars(query, {"id": job_id(number)}))


def tick_all(ledger: Ledger) -> None:
    ledger.ticks.leave(*(work.tick for work in periodic_work(1.0, accounts=False)), CALLBACKS)


def commands_with_json() -> Sequence[Sequence[str]]:
    return [
        ["status"],
        ["jobs"],
        ["job", "0x0"],
        ["parked"],
        ["alarms"],
        ["transactions"],
        ["transactions", "--open"],
        ["sweeps"],
    ]


@pytest.mark.parametrize("words", commands_with_json(), ids=" ".join)
def test_every_question__has_a_table_and_a_document(run: Run, ledger: Ledger, words: Sequence[str]) -> None:
    bring_to_queued(ledger, 1)
    park_one(ledger)
    assert run(*words).stdout.strip()
    assert said(run(*words, "--json")) is not None


@pytest.mark.parametrize("words", commands_with_json(), ids=" ".join)
def test_every_question__text_of_strangers__is_shown_and_not_obeyed(
    run: Run, ledger: Ledger, words: Sequence[str]
) -> None:
    bring_to_queued(ledger, 1)
    park_one(ledger, reason=HOSTILE)
    ledger.alarms.on(AlarmName.EFFECT_LATE, last_error=HOSTILE)
    for form in ([], ["--json"]):
        shown = run(*words, *form).stdout
        assert shown.replace("\n", "").isprintable()
        assert "\nforged" not in shown
    if words[0] in ("parked", "alarms", "job"):
        assert "\\x1b[2J" in run(*words).stdout
        assert "[red]" in run(*words).stdout


def test_status__tells_of_jobs_effects_alarms_and_the_switch(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(Change(job_id(2), claim(2)))
    park_one(ledger)
    run("drain", "on", "--reason", "maintenance")
    document = said(run("status", "--json"))
    assert document["jobs"] == {"CLAIMED": 1, "QUEUED": 1}
    assert {count["kind"]: (count["due"], count["parked"]) for count in document["effects"]} == {
        "fetch": (1, 0),
        "witness": (0, 1),
    }
    assert [alarm["name"] for alarm in document["alarms"]] == ["effect_parked"]
    assert document["drained"] is True
    assert "stopped by the operator" in run("status").stdout


def test_drain__on_and_off__sets_the_switch(run: Run, ledger: Ledger) -> None:
    run("drain", "on")
    assert ledger.switches.is_set(Switch.DRAINED)
    run("drain", "off")
    assert not ledger.switches.is_set(Switch.DRAINED)


def test_jobs__by_state__only_those(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(Change(job_id(2), claim(2)))
    ledger.record(Change(job_id(1), ChainSaw(ChainStatus.CANCELLED, (9, 0))))
    assert [row["job_id"] for row in said(run("jobs", "--json"))] == [job_id(2)]
    assert [row["job_id"] for row in said(run("jobs", "--state", "settled", "--json"))] == [job_id(1)]
    assert "SEATTLED" in run("jobs", "--state", "SEATTLED", status=2).stderr


def test_job__tells_all_in_the_order_of_time(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    with ledger.engine.begin() as connection:
        insert = (
            "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer)"
            " VALUES ('here', :job, 101, 7, 61, 0, 'test')"
        )
        connection.execute(text(insert), {"job": job_id(1)})
    document = said(run("job", job_id(1), "--json"))
    assert document["job"]["slurm_id"] == 101
    assert document["job"]["chain_status"] == "SCHEDULED"
    journal = [entry["what"] for entry in document["story"] if entry["source"] == "journal"]
    assert journal == ["Claimed", "ScriptFetched", "SubmitStarted", "Submitted"]
    assert {entry["source"] for entry in document["story"]} == {"journal", "effect", "callback"}
    assert [entry["at"] for entry in document["story"]] == sorted(entry["at"] for entry in document["story"])


def test_job__unknown_ambiguous_or_no_id__is_told(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 0x1A)
    bring_to_queued(ledger, 0x1B)
    assert "found several jobs" in run("job", "0x00", status=1).stderr
    assert "found no job" in run("job", "0xff", status=1).stderr
    assert "expected a job's id" in run("job", "0x%", status=1).stderr
    assert said(run("job", job_id(0x1A), "--json"))["job"]["job_id"] == job_id(0x1A)


def test_retry__one_effect__begins_anew(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    effect = park_one(ledger)
    assert [row["effect"] for row in said(run("parked", "--json"))] == [effect.id]
    assert [row["id"] for row in said(run("retry", str(effect.id), "--json"))] == [effect.id]
    assert [again.attempts for again in ledger.effects.lease([Kind.WITNESS])] == [1]
    assert said(run("parked", "--json")) == []


def test_retry__of_a_job_or_all(run: Run, ledger: Ledger) -> None:
    for number in (1, 2, 3):
        bring_to_queued(ledger, number)
    for _ in range(3):
        with ledger.engine.begin() as connection:
            connection.execute(text("UPDATE effects SET due_at = now() - interval '1 s' WHERE done_at IS NULL"))
        effect = ledger.effects.lease([Kind.WITNESS], most=1)[0]
        park(ledger, effect, "no")
    assert [row["job_id"] for row in said(run("retry", "--job", job_id(2), "--json"))] == [job_id(2)]
    assert len(said(run("retry", "--all", "--json"))) == 2
    assert "found nothing parked" in run("retry", "--job", job_id(2), status=1).stderr
    assert "expected one of" in run("retry", status=2).stderr


def test_settle__parked_job__is_reported_and_cancelled_by_the_operators_word(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    park_one(ledger)
    run("settle", job_id(1), "--status", "failed", "--minutes", "7", "--reason", "node burnt down", "--yes")
    job = job_of(ledger, 1)
    assert (job.state, job.settled_by_operator) == (State.ENDED, True)
    assert job.outcome == Outcome(status=ChainStatus.FAILED, elapsed_s=420, reason="node burnt down")
    assert open_kinds(ledger, 1) == {"report", "cancel", "tell_user"}
    story = said(run("job", job_id(1), "--json"))["story"]
    (word,) = [entry for entry in story if entry["what"] == "OperatorSettled"]
    assert word["details"]["outcome"]["reason"] == "node burnt down"
    ledger.record(Change(job_id(1), ChainSaw(ChainStatus.FAILED, (9, 0))))
    assert open_kinds(ledger, 1) == {"cancel", "tell_user"}


def test_settle__slurm_took_it_after_all__is_cancelled(run: Run, ledger: Ledger) -> None:
    from supervisor_tasks.events import ScriptFetched, SubmitStarted

    events = (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))
    ledger.record(*(Change(job_id(1), event) for event in events))
    run("settle", job_id(1), "--status", "CANCELLED", "--minutes", "0", "--reason", "stuck", "--yes")
    ledger.record(Change(job_id(1), Submitted(SlurmId(9))))
    assert job_of(ledger, 1).slurm_id == 9
    assert "cancel" in open_kinds(ledger, 1)


def test_settle__not_confirmed__changes_nothing(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    before = job_of(ledger, 1)
    words = ("settle", job_id(1), "--status", "FAILED", "--minutes", "0", "--reason", "x")
    run(*words, typed="n\n", status=1)
    assert job_of(ledger, 1) == before
    run(*words, typed="y\n")
    assert job_of(ledger, 1).state is State.ENDED


def test_settle__absurd__is_refused(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(Change(job_id(2), claim(2)))
    settle = ("settle", job_id(1), "--reason", "x", "--yes", "--status")
    assert "expected at most 10" in run(*settle, "FINISHED", "--minutes", "11", status=1).stderr
    run(*settle, "RUNNING", "--minutes", "1", status=2)
    run(*settle, "FINISHED", "--minutes", "-1", status=2)
    never = run("settle", job_id(2), "--reason", "x", "--yes", "--status", "FAILED", "--minutes", "1", status=1)
    assert "no SLURM id is known" in never.stderr
    assert job_of(ledger, 1).state is State.QUEUED
    run(*settle, "FINISHED", "--minutes", "11", "--force")
    ledger.record(Change(job_id(1), ChainSaw(ChainStatus.FINISHED, (9, 0))))
    assert "cannot be settled" in run(*settle, "FAILED", "--minutes", "0", "--force", status=1).stderr


def test_settle__report_under_way__is_refused(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ended = Outcome(status=ChainStatus.FINISHED, elapsed_s=60)
    ledger.record(Change(job_id(1), SlurmStarted()), Change(job_id(1), SlurmEnded(ended)))
    with ledger.engine.begin() as connection:
        insert = (
            "INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, job_id, intent, gas, max_fee_wei,"
            " priority_fee_wei, raw, hash, state)"
            " VALUES ('here', 1, '0x1', 4, 'report FINISHED', :job, 'i', 1, 1, 1, '\\x00', '0xabc', 'SENT')"
        )
        connection.execute(text(insert), {"job": job_id(1)})
    refused = run("settle", job_id(1), "--status", "FAILED", "--minutes", "0", "--reason", "x", "--yes", status=1)
    assert "0xabc" in refused.stderr
    (transaction,) = said(run("transactions", "--open", "--json"))
    assert (transaction["nonce"], transaction["purpose"]) == (4, "report FINISHED")
    assert said(run("status", "--json"))["wallet"] == {"address": "0x1", "chain_id": 1, "next_nonce": 5}


def test_not_in_slurm__parked_submission__is_made_again(run: Run, ledger: Ledger) -> None:
    from supervisor_tasks.events import ScriptFetched, SubmitStarted

    ledger.record(*(Change(job_id(1), event) for event in (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))))
    words = ("not-in-slurm", job_id(1), "--reason", "slurmctld.log")
    assert "0 parked submissions" in run(*words, "--yes", status=1).stderr
    park_one(ledger, Kind.SUBMIT, "its log was written")
    run(*words, typed="n\n", status=1)
    assert job_of(ledger, 1).state is State.SUBMITTING
    run(*words, "--yes")
    assert job_of(ledger, 1).state is State.READY
    assert open_kinds(ledger, 1) == {"submit"}
    assert "expected SUBMITTING" in run(*words, "--yes", status=1).stderr


def test_forget__only_what_a_job_does_not_need(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    witness = park_one(ledger)
    refused = run("forget", str(witness.id), "--reason", "x", "--yes", status=1)
    assert "stands still" in refused.stderr
    ledger.record(Change(job_id(1), SlurmEnded(Outcome(status=ChainStatus.FAILED, reason="exit code 1"))))
    tell = park_one(ledger, Kind.TELL_USER)
    run("forget", str(tell.id), "--reason", "logger is gone", "--yes")
    assert open_kinds(ledger, 1) == {"report"}
    assert said(run("parked", "--json")) == []
    whats = [entry["what"] for entry in said(run("job", job_id(1), "--json"))["story"]]
    assert "OperatorForgot" in whats


def test_forget__what_the_next_sweep_would_ask_for_again__is_refused(run: Run, ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(Change(job_id(1), ChainSaw(ChainStatus.CANCELLED, (9, 0))))
    cancel = park_one(ledger, Kind.CANCEL)
    refused = run("forget", str(cancel.id), "--reason", "x", "--yes", status=1)
    assert "SETTLED; expected QUEUED or RUNNING" in refused.stderr
    assert [row["kind"] for row in said(run("parked", "--json"))] == ["cancel"]


def test_forget__cancellation_of_what_slurm_may_not_have__is_done(run: Run, ledger: Ledger) -> None:
    from supervisor_tasks.events import ScriptFetched, SubmitStarted

    ledger.record(*(Change(job_id(1), event) for event in (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))))
    ledger.record(Change(job_id(1), ChainSaw(ChainStatus.CANCELLED, (9, 0))))
    cancel = park_one(ledger, Kind.CANCEL)
    run("forget", str(cancel.id), "--reason", "x", "--yes")
    assert said(run("parked", "--json")) == []


def test_health__ticks__tell_who_does_not_progress(run: Run, ledger: Ledger) -> None:
    assert "nothing periodic comes to an end" in run("health", status=1).stdout
    tick_all(ledger)
    assert run("health").stdout == "healthy\n"
    with ledger.engine.begin() as connection:
        query = "UPDATE ticks SET succeeded_at = now() - interval '1 h' WHERE name LIKE 'claim%'"
        connection.execute(text(query))
    (complaint,) = said(run("health", "--json", status=1))["complaints"]
    assert "claim: last ended 3600 s ago" in complaint
    assert "queue chain" in complaint


def test_health__an_effect_that_nobody_takes__is_told(run: Run, ledger: Ledger) -> None:
    tick_all(ledger)
    ledger.record(Change(job_id(1), claim(1)))
    run("health")
    with ledger.engine.begin() as connection:
        connection.execute(text("UPDATE effects SET due_at = now() - interval '5 min'"))
    assert "has been due for 300 s" in run("health", status=1).stdout


def test_no_database__is_told_in_a_line() -> None:
    gone = {"DATABASE_URL": "postgresql://user:sesame-open@127.0.0.1:1/none", "CLUSTER_NAME": "here"}
    for words in (["status"], ["health"], ["parked", "--json"]):
        result = CliRunner().invoke(main, words, env=gone)
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: the ledger's database:")
        assert "try again" in result.stderr
        assert "sesame" not in result.output


def test_database__without_tables_or_rights__says_which(servers: tuple[Engine, dict[str, str]], ledger: Ledger) -> None:
    _, environment = servers
    with ledger.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in ("DROP DATABASE IF EXISTS bare", "CREATE DATABASE bare", "DROP ROLE IF EXISTS stranger"):
            connection.execute(text(statement))
        connection.execute(text("CREATE ROLE stranger LOGIN"))
    url = environment["DATABASE_URL"]
    bare = CliRunner().invoke(main, ["jobs"], env=environment | {"DATABASE_URL": url.replace("/postgres?", "/bare?")})
    stranger = CliRunner().invoke(
        main, ["jobs"], env=environment | {"DATABASE_URL": url.replace("//postgres@", "//stranger@")}
    )
    assert (bare.exit_code, stranger.exit_code) == (1, 1)
    assert bare.stderr == (
        'Error: found other tables than expected (relation "jobs" does not exist): `supervisor db upgrade` first\n'
    )
    assert stranger.stderr == "Error: the ledger's database: permission denied for table jobs\n"


def test_help__without_any_setting__is_shown() -> None:
    assert "EFFECT" in CliRunner().invoke(main, ["retry", "--help"]).output


def test_metrics__as_a_process__answer_a_scrape(
    run: Run, ledger: Ledger, servers: tuple[Engine, dict[str, str]]
) -> None:
    bring_to_queued(ledger, 1)
    park_one(ledger)
    tick_all(ledger)
    Registrations(ledger.facts).learn_standing(Standing.WAITING)
    begun = ledger.sweeps.begin("blind")
    ledger.sweeps.keep(begun, {"blind_since_s": {"slurm": begun.at.timestamp() - 90}}, {})
    _, environment = servers
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "metrics", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(argv, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            with urllib.request.urlopen(url, timeout=deadline(30)) as answer:  # noqa: S310
                lines = answer.read().decode().splitlines()
        finally:
            process.terminate()
    for line in (
        "supervisor_ledger_up 1.0",
        "supervisor_healthy 1.0",
        "supervisor_drained 0.0",
        'supervisor_provider_standing{standing="waiting"} 1.0',
        'supervisor_provider_standing{standing="approved"} 0.0',
        'supervisor_jobs{state="QUEUED"} 1.0',
        'supervisor_jobs{state="RUNNING"} 0.0',
        'supervisor_effects{kind="witness",place="parked"} 1.0',
        'supervisor_alarm{name="effect_parked"} 1.0',
        'supervisor_alarm{name="slurm_not_answering"} 0.0',
        'supervisor_sweep_unseen_seconds{side="slurm"} 90.0',
    ):
        assert line in lines


def test_unknown_job_ids_of_other_clusters__are_not_seen(run: Run, ledger: Ledger) -> None:
    other = Ledger(ledger.engine, "there", lambda _: None)
    other.record(Change(JobId(job_id(5)), claim(5)))
    assert said(run("jobs", "--json")) == []
    assert "found no job" in run("job", job_id(5), status=1).stderr


def test_sweep__asked_for__shows_the_report(run: Run, ledger: Ledger) -> None:
    sweeps, facts = Sweeps(ledger.engine, "here"), Facts(ledger.engine, "here")
    assert "expected one" in run("sweep", "--wait-s", "0", status=1).stderr
    with ThreadPoolExecutor(1) as pool:

        def sweep_when_asked() -> None:
            wait_until(lambda: facts.get(WANTED) is not None, "somebody to ask", 60.0)
            sweeps.keep(sweeps.begin(""), {"lost_completions": 3, "why": HOSTILE}, {})

        facts.clear(WANTED)  # what the first command asked for
        swept = pool.submit(sweep_when_asked)
        report = said(run("sweep", "--json"))[0]["report"]
        swept.result()
    assert report["lost_completions"] == 3
    assert len(said(run("sweeps", "--json"))) == 1
    assert "\\x1b[2J" in run("sweeps").stdout
    assert "ended" in run("status").stdout


def test_forget_reporter__nobody_waits_for_it_any_more(run: Run, ledger: Ledger) -> None:
    with ledger.engine.begin() as connection:
        leave_signs(connection, "here", [CALLBACKS, REPORTER])
        connection.execute(text("UPDATE ticks SET succeeded_at = now() - interval '1 h' WHERE name LIKE 'reporter%'"))
    assert set(away(ledger.ticks.ages_s())) == {REPORTER}
    run("forget-reporter", typed="n\n", status=1)
    run("forget-reporter", "--yes")
    assert away(ledger.ticks.ages_s()) == {}


def test_confirm_lost__a_job_that_is_held__is_panicked_and_no_other(run: Run, ledger: Ledger) -> None:
    assert "expected one that is held" in run("confirm-lost", "--yes", status=1).stderr
    held, other = bring_to_queued(ledger, 1), bring_to_queued(ledger, 2)
    ledger.sweeps.keep(ledger.sweeps.begin(""), {"held": {held: 101, other: 102}, "again_s": 900.0}, {})
    run("confirm-lost", held, typed="n\n", status=1)
    assert job_of(ledger, 1).state is State.QUEUED
    assert held in run("confirm-lost", held, "--yes").stdout
    assert (job_of(ledger, 1).outcome.status, job_of(ledger, 2).state) == (ChainStatus.PANICKED, State.QUEUED)
    run("confirm-lost", held, "--yes", status=1)


def test_rewind__is_a_fact_of_the_ledger_and_goes_no_deeper_than_what_is_kept(run: Run, ledger: Ledger) -> None:
    assert "none is kept yet" in run("chain", "rewind", "--to-block", "0", "--yes", status=1).stderr
    with ledger.engine.begin() as connection:
        Blocks(ledger.engine, ledger.cluster, 0).remember(connection, {70: "0x70", 71: "0x71"})
    assert "70 is the first that is kept" in run("chain", "rewind", "--to-block", "69", "--yes", status=1).stderr
    assert ledger.facts.read(REWIND) is None
    run("chain", "rewind", "--to-block", "70", "--yes")
    asked = ledger.facts.read(REWIND)
    assert asked is not None
    assert asked.value == 70


def test_take_over__a_mark_that_is_known__is_ours_from_then_on_and_a_sweep_is_asked_for(
    run: Run, ledger: Ledger
) -> None:
    mark = b"\x0a" * 8
    ledger.others.keep([OthersClaim(mark, claim(1)), OthersClaim(b"\x0b" * 8, claim(2))])
    assert "0a0a0a0a0a0a0a0a (1 jobs)" in run("take-over", "00", "--yes", status=1).stderr
    refused = run("take-over", mark.hex(), "--yes", status=1)  # the chain of these settings is nowhere
    assert "the chain cannot be looked at" in refused.stderr
    assert "expected no sign of life" in refused.stderr
    run("take-over", mark.hex(), "--yes-it-is-dead", typed="n\n", status=1)
    assert (ledger.others.taken(), ledger.facts.get(WANTED)) == (set(), None)
    run("take-over", f"0x{mark.hex().upper()}", "--yes", "--yes-it-is-dead")
    assert (ledger.others.taken(), ledger.facts.get(WANTED) is not None) == ({mark}, True)
    run("take-over", mark.hex(), "--yes", status=1)
