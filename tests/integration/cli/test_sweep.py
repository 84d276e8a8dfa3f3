"""The commands for sweeps."""

from concurrent.futures import ThreadPoolExecutor

from devgrid.processes import wait_until
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import SWEEP_REQUESTED
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.reconciliations import Begun, Reconciliations
from tests.support.operator_commands import HOSTILE, Run, said


def test_sweep__asked_for__shows_the_report(run: Run, ledger: Ledger) -> None:
    reconciliations, facts = (
        Reconciliations(ledger.engine, "here"),
        Facts(ledger.engine, "here"),
    )
    assert (
        "expected one" in run("sweep", "run", "--yes", "--wait-s", "0", status=1).stderr
    )
    with ThreadPoolExecutor(1) as pool:

        def sweep_when_asked() -> None:
            wait_until(
                lambda: facts.get(SWEEP_REQUESTED) is not None,
                "the command to request it",
                60.0,
            )
            reconciliations.store(
                reconciliations.begin(""), {"lost_completions": 3, "why": HOSTILE}, {}
            )

        facts.clear(SWEEP_REQUESTED)  # what the first command asked for
        swept = pool.submit(sweep_when_asked)
        report = said(run("sweep", "run", "--yes", "-o", "json"))["report"]
        swept.result()
    assert report["lost_completions"] == 3
    assert len(said(run("sweep", "list", "-o", "json"))) == 1
    assert "\\x1b[2J" in run("sweep", "show").stdout
    assert "ended" in run("status").stdout


def test_sweep_run__a_sweep_had_begun_before__waits_for_the_next_one(
    run: Run, ledger: Ledger
) -> None:
    """The command showed the report of a sweep that had not seen what it asked for."""
    reconciliations, facts = ledger.reconciliations, ledger.facts

    def sweep(begun: Begun | None) -> None:
        wait_until(
            lambda: facts.get(SWEEP_REQUESTED) is not None,
            "the command to request it",
            60.0,
        )
        reconciliations.store(begun or reconciliations.begin(""), {}, {})

    with ThreadPoolExecutor(1) as pool:
        early = reconciliations.begin("beat")
        kept = pool.submit(sweep, early)
        words = ("sweep", "run", "--yes", "-o", "json")
        unseen = run(*words, "--wait-s", "2", status=1)
        kept.result()
        assert "found no report of a sweep that began after" in unseen.stderr
        assert len(reconciliations.last(2)) == 1
        facts.clear(SWEEP_REQUESTED)
        kept = pool.submit(sweep, None)
        shown = said(run(*words))
        kept.result()
    assert shown["id"] == reconciliations.last()[0].id
    assert len(reconciliations.last(3)) == 2
