from supervisor_tasks.slurm.login_silence import (
    FIRST_S,
    MAX_SILENCE_S,
    SLOW_FOR_S,
    SLOW_S,
    LoginSilence,
)


def hung_for(silence: LoginSilence, begun_s: float) -> float:
    silence.record_hang(begun_s, begun_s + 15.0)
    return silence.left_s(begun_s + 15.0)


def test_silence__login_hangs_again_and_again__grows_up_to_a_bound() -> None:
    silence = LoginSilence()
    assert silence.left_s(0.0) == 0.0
    assert [hung_for(silence, 1000.0 * number) for number in range(6)] == [
        FIRST_S,
        2 * FIRST_S,
        4 * FIRST_S,
        8 * FIRST_S,
        MAX_SILENCE_S,
        MAX_SILENCE_S,
    ]
    assert silence.left_s(5015.0 + MAX_SILENCE_S) == 0.0


def test_silence__two_hang_at_once__is_one() -> None:
    silence = LoginSilence()
    assert hung_for(silence, 0.0) == FIRST_S
    silence.record_hang(1.0, 16.0)
    assert silence.left_s(16.0) == FIRST_S - 1.0


def test_silence__command_was_carried_out__is_short_again() -> None:
    silence = LoginSilence()
    hung_for(silence, 0.0)
    hung_for(silence, 100.0)
    silence.carried_out()
    assert hung_for(silence, 1000.0) == FIRST_S


def test_slow__quick_commands_in_between__stays_slow_for_a_while() -> None:
    silence = LoginSilence()
    silence.record_duration(SLOW_S - 0.1, 10.0)
    assert not silence.is_slow(10.0)
    silence.record_duration(SLOW_S, 20.0)
    silence.record_duration(0.1, 21.0)
    assert silence.is_slow(20.0 + SLOW_FOR_S - 0.1)
    assert not silence.is_slow(20.0 + SLOW_FOR_S)
