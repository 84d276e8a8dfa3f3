"""How many examples hypothesis tries: all in `make test`, a fifth in `make unit`, which
is for use while you work.
"""

from hypothesis import settings

FULL = settings.default.max_examples if settings.default is not None else 100
QUICK = FULL // 5

settings.register_profile("quick", max_examples=QUICK)


def examples(full: int) -> int:
    """As many of these as the profile asks for, at least one."""
    assert settings.default is not None
    return max(full * settings.default.max_examples // FULL, 1)
