"""What of a URL may be seen, and what is taken out of texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.config.redaction import hiding
from supervisor_tasks.config.url_secrets import all_keys, shown, url_keys

# no letters of the words around it
KEY = st.text("abdefg0123456789ABC", min_size=2, max_size=20)


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        (
            "https://user:pass@node.example:8545/v3/key?a=b#c",
            "https://node.example:8545#2",
        ),
        ("wss://node.example/ws", "wss://node.example#2"),
        ("http://[::1]:80/rpc", "http://[::1]:80#2"),
        ("http://key@h", "http://h#2"),
    ],
)
def test_shown__url__is_scheme_host_port_and_place(url: str, seen: str) -> None:
    assert shown(url, 2) == seen


@given(
    key=KEY,
    form=st.sampled_from(
        [
            "http://h/{}",
            "http://h/rpc/{}",
            "http://h?{}",
            "http://h/rpc?k={}",
            "http://{}@h",
        ]
    ),
)
def test_all_keys__key_of_any_length_anywhere__is_hidden_where_it_is_said(
    key: str, form: str
) -> None:
    url = form.format(key)
    for said in (f"<{key}>", f"'{key}'", f"x={key}&x", f"{key} {key}", url, repr(url)):
        assert key not in hiding(all_keys(url), "")(said)


@pytest.mark.parametrize(
    "said",
    [
        "Retrying after connection broken by 'x': /v3/a1?k=b2",
        "POST /v3/a1?k=b2 HTTP/1.1",
        "https://u1:p2@node.example/v3/a1?k=b2 does not answer",
        "Authorization: Basic dTE6cDI=",
        "u1:p2@node.example",
        "/v3/a1",
        "url: /v3/a1/",
    ],
)
def test_url_keys__whole_path_query_and_user__are_hidden_in_any_text(said: str) -> None:
    clean = hiding(url_keys("https://u1:p2@node.example/v3/a1?k=b2"))(said)
    assert not [key for key in ("u1", "p2", "dTE6cDI", "a1", "b2") if key in clean]
    assert "[redacted]" in clean


def test_url_keys__plain_words_of_a_path__stay_in_what_is_said_of_other_things() -> (
    None
):
    hide = hiding(url_keys("https://rpc.node.example/ext/bc/C/rpc"))
    assert (
        hide("https://rpc.node.example/ext/bc/C/rpc")
        == "https://rpc.node.example[redacted]"
    )
    assert hide("an rpc node of ext") == "an rpc node of ext"


def test_hiding__short_secret__is_hidden_as_a_word_and_not_within_one() -> None:
    hide = hiding(["ab", "12", "correct-horse"])
    assert (
        hide("ab cab abc a_ab 12 312 x=12,")
        == "[redacted] cab abc a_[redacted] [redacted] 312 x=[redacted],"
    )
    assert hide("xcorrect-horsex") == "x[redacted]x"


def test_hiding__one_within_the_other__the_longer_goes_first() -> None:
    assert hiding(["/a1", "/a1?k=b2"])("at /a1?k=b2") == "at [redacted]"
