"""How many examples hypothesis tries: all in `make test`, a fifth in `make unit`, which
is for use while you work. No property fails because the machine is slow.
"""

from hypothesis import HealthCheck, settings

FULL = 100
QUICK = FULL // 5

for name, most in (("whole", FULL), ("quick", QUICK)):
    settings.register_profile(
        name,
        max_examples=most,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("whole")


def examples(full: int) -> int:
    """As many of these as the profile asks for, at least one."""
    assert settings.default is not None
    return max(full * settings.default.max_examples // FULL, 1)
