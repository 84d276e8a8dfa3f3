"""Secrets are hidden in texts: a long one everywhere, a short one as a word."""

from supervisor_tasks.config.redaction import hiding


def test_hiding__short_secret__is_hidden_as_a_word_and_not_within_one() -> None:
    hide = hiding(["ab", "12", "correct-horse"])
    assert (
        hide("ab cab abc a_ab 12 312 x=12,")
        == "[redacted] cab abc a_[redacted] [redacted] 312 x=[redacted],"
    )
    assert hide("xcorrect-horsex") == "x[redacted]x"


def test_hiding__one_within_the_other__the_longer_goes_first() -> None:
    assert hiding(["/a1", "/a1?k=b2"])("at /a1?k=b2") == "at [redacted]"
