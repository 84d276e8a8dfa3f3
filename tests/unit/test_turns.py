"""How long a thread goes on with one customer."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor_tasks.job import Address
from supervisor_tasks.journey import steps
from supervisor_tasks.site import Site

CUSTOMER = Address("0x" + "1" * 40)


class Waiting:
    """Effects of one customer, each of which takes so many seconds."""

    def __init__(self, jobs: int, takes_s: float) -> None:
        self.left, self.takes_s, self.now_s = jobs, takes_s, 0.0
        self.woken: list[Address] = []

    def lease(self, _kinds: object, _effect_id: int) -> list[int]:
        return self.lease_next(CUSTOMER)

    def lease_next(self, _customer: Address) -> list[int]:
        self.left -= 1
        return [self.left] if self.left >= 0 else []

    def wake_next(self, customer: Address) -> None:
        self.woken.append(customer)

    def carry_out(self, _site: Site, _effect: object) -> Address:
        self.now_s += self.takes_s
        return CUSTOMER


@pytest.mark.parametrize(
    ("takes_s", "left", "woken"), [(0.1, -1, []), (2.0, 7, [CUSTOMER]), (5.5, 9, [CUSTOMER]), (15.0, 9, [CUSTOMER])]
)
def test_customers_submissions_in_one_thread__go_on_for_a_turn__then_the_next_one_gets_a_message(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, left: int, woken: list[Address]
) -> None:
    waiting = Waiting(10, takes_s)
    monkeypatch.setattr(steps, "carry_out_leased", waiting.carry_out)
    site = cast(Any, SimpleNamespace(ledger=SimpleNamespace(effects=waiting)))
    steps.carry_out_in_turn(site, 1, lambda: True, lambda: waiting.now_s)
    assert (waiting.left, waiting.woken) == (left, woken)
