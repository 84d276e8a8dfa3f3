"""Variables that the Go program reads, and that hold the value of one of our settings
in another form. Pure.
"""

import re
import shlex
from collections.abc import Callable, Mapping


def _words(text: str) -> str:
    """Turn NAME=value,NAME=value into words of a shell."""
    words = list[str]()
    for pair in text.split(","):
        if not pair.strip():
            continue
        name, equals, value = pair.partition("=")
        if not (name.strip() and equals):
            raise ValueError("NAME=value,NAME=value")
        words.append(f"{name.strip()}={shlex.quote(value)}")
    return " ".join(words)


def _share(text: str) -> str:
    """Turn per cent into a share of 1."""
    if (
        not re.fullmatch(r"\d{1,3}(\.\d+)?", text, re.ASCII)
        or not 0 < float(text) <= 100
    ):
        raise ValueError("a number of per cent above 0, up to 100")
    return str(float(text) / 100)


OTHER_FORMS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "benchmark_environment": ("BENCHMARK_ENV", _words),
    "benchmark_hpl_memory_share": ("BENCHMARK_HPL_MEMORY_PERCENT", _share),
}
"""Settings, each with the Go program's variable and the function that reads it. Where
both are given, ours counts.
"""


def in_our_form(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return our settings from these variables, and a line for each variable that is
    malformed.
    """
    given, lines = {}, []
    for name, (variable, read) in OTHER_FORMS.items():
        text = environment.get(variable, "")
        if not text or environment.get(name.upper()):
            continue
        try:
            given[name] = read(text)
        except ValueError as error:
            lines.append(f"{variable}: found {text!r}; expected {error}")
    return given, lines
