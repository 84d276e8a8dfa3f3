"""The log of the gRPC process under a flood."""

from structlog.testing import CapturingLogger

from grpc_callbacks.rate_limited_log import MAX_LINES, PERIOD_S, RateLimitedLogger


def test_rate_limited_logger__a_flood__is_counted_and_told_once() -> None:
    lines, now_s = CapturingLogger(), [0.0]
    log = RateLimitedLogger(lines, lambda: now_s[0])
    for number in range(10 * MAX_LINES):
        (log.info if number % 2 else log.warning)(
            "stored" if number % 2 else "malformed", number=number
        )
    assert len(lines.calls) == MAX_LINES
    now_s[0] = PERIOD_S
    log.flush_dropped_counts()
    log.flush_dropped_counts()
    assert lines.calls[MAX_LINES:] == [lines.calls[MAX_LINES]]
    assert lines.calls[MAX_LINES].kwargs == {
        "stored": 9 * MAX_LINES // 2,
        "malformed": 9 * MAX_LINES // 2,
    }
    log.info("stored", number=1)
    assert lines.calls[-1].args == ("stored",)
    now_s[0] = 2 * PERIOD_S
    log.flush_dropped_counts()
    assert len(lines.calls) == MAX_LINES + 2
