"""The commands for alarms."""

from sqlalchemy import text

from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.ledger import Ledger
from tests.support.operator_commands import Run


def test_alarm_list__since_sort_and_limit__narrow_and_order_it(
    run: Run, ledger: Ledger
) -> None:
    def names(*words: str) -> list[str]:
        return run("alarm", "list", *words, "-o", "name").stdout.split()

    for name in (AlarmName.WALLET_EMPTY, AlarmName.CLAIMS_FULL):
        ledger.alarms.on(name)
    with ledger.engine.begin() as connection:
        older = "UPDATE alarms SET raised_at = now() - interval '2 hours' WHERE name = 'wallet_empty'"
        connection.execute(text(older))
    assert names() == names("--sort", "age") == ["wallet_empty", "claims_full"]
    assert names("--sort", "name") == ["claims_full", "wallet_empty"]
    assert names("--since", "1h") == ["claims_full"]
    assert names("--limit", "1") == ["wallet_empty"]
