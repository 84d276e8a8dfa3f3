from supervisor_tasks.slurm.login_backoff import (
    FIRST_S,
    MAX_BACKOFF_S,
    SLOW_FOR_S,
    SLOW_S,
    LoginBackoff,
)


def hung_for(backoff: LoginBackoff, begun_s: float) -> float:
    backoff.record_hang(begun_s, begun_s + 15.0)
    return backoff.left_s(begun_s + 15.0)


def test_backoff__login_hangs_again_and_again__grows_up_to_a_bound() -> None:
    backoff = LoginBackoff()
    assert backoff.left_s(0.0) == 0.0
    assert [hung_for(backoff, 1000.0 * number) for number in range(6)] == [
        FIRST_S,
        2 * FIRST_S,
        4 * FIRST_S,
        8 * FIRST_S,
        MAX_BACKOFF_S,
        MAX_BACKOFF_S,
    ]
    assert backoff.left_s(5015.0 + MAX_BACKOFF_S) == 0.0


def test_backoff__two_hang_at_once__is_one() -> None:
    backoff = LoginBackoff()
    assert hung_for(backoff, 0.0) == FIRST_S
    backoff.record_hang(1.0, 16.0)
    assert backoff.left_s(16.0) == FIRST_S - 1.0


def test_backoff__command_was_carried_out__is_short_again() -> None:
    backoff = LoginBackoff()
    hung_for(backoff, 0.0)
    hung_for(backoff, 100.0)
    backoff.record_success()
    assert hung_for(backoff, 1000.0) == FIRST_S


def test_slow__quick_commands_in_between__stays_slow_for_a_while() -> None:
    backoff = LoginBackoff()
    backoff.record_duration(SLOW_S - 0.1, 10.0)
    assert not backoff.is_slow(10.0)
    backoff.record_duration(SLOW_S, 20.0)
    backoff.record_duration(0.1, 21.0)
    assert backoff.is_slow(20.0 + SLOW_FOR_S - 0.1)
    assert not backoff.is_slow(20.0 + SLOW_FOR_S)
