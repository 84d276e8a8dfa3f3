"""What of a URL may be shown, and which parts of it are hidden in texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.config.redaction import hiding
from supervisor_tasks.config.url_secrets import (
    all_keys,
    forms_of,
    passwords_in,
    shown,
    url_keys,
    without_password,
)

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
        ("http://a:b:c@Node.Example:0", "http://node.example:0#2"),
        ("http://h?key", "http://h#2"),
        ("http://h#key", "http://h#2"),
    ],
)
def test_shown__each_url__is_scheme_host_port_and_place(url: str, seen: str) -> None:
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
def test_all_keys__key_of_any_length_anywhere__is_hidden_in_each_text(
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


def test_url_keys__plain_words_of_a_path__stay_in_texts_about_other_things() -> None:
    hide = hiding(url_keys("https://rpc.node.example/ext/bc/C/rpc"))
    assert (
        hide("https://rpc.node.example/ext/bc/C/rpc")
        == "https://rpc.node.example[redacted]"
    )
    assert hide("an rpc node of ext") == "an rpc node of ext"


@pytest.mark.parametrize(
    ("url", "hidden", "only_for_this_url"),
    [
        ("http://h", set(), set()),
        ("http://h:8545/", set(), set()),
        ("http://h?", set(), set()),
        ("http://h/v3", {"/v3"}, {"v3"}),
        ("http://h/v3/", {"/v3", "/v3/"}, {"v3"}),
        ("http://h/ab1", {"/ab1"}, {"ab1"}),
        ("http://h/abc1", {"/abc1", "abc1"}, set()),
        ("http://h/abcd", {"/abcd"}, {"abcd"}),
        ("http://h/abcdefg", {"/abcdefg"}, {"abcdefg"}),
        ("http://h/abcdefgh", {"/abcdefgh", "abcdefgh"}, set()),
        ("http://h/a/b", {"/a/b", "a/b"}, {"a", "b"}),
        ("http://h/a;b,c", {"/a;b,c"}, {"a", "b", "c"}),
        ("http://h/?k=v", {"k=v", "/?k=v"}, {"k", "v"}),
        ("http://h/?k1&v2", {"k1&v2", "/?k1&v2"}, {"k1", "v2"}),
        ("http://h/#frag", {"frag", "/#frag"}, set()),
        ("http://h/%41b", {"/%41b", "/Ab", "%41b"}, {"Ab"}),
        ("http://me@h", {"me", "bWU="}, set()),
    ],
)
def test_url_keys__each_url__leaves_the_words_that_only_all_keys_hides(
    url: str, hidden: set[str], only_for_this_url: set[str]
) -> None:
    assert url_keys(url) == sorted(hidden)
    assert all_keys(url) == sorted(hidden | only_for_this_url)


def test_url_keys__user_and_password_with_escapes__are_hidden_in_each_form() -> None:
    found = url_keys("https://user:p%20word@h")
    assert found == sorted(
        ["user:p%20word", "user:p word", "p%20word", "p word", "dXNlcjpwIHdvcmQ="]
    )


# --- secrets that are not URLs --------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "forms"),
    [
        ("0xabcdef", ["0xabcdef", "abcdef"]),
        ("abcdef", ["abcdef", "abcdef"]),
        ("redis://:p%40w@h/0", ["redis://:p%40w@h/0"] * 2 + ["p%40w", "p@w"]),
    ],
)
def test_forms_of__key_or_url__has_the_key_without_0x_and_the_password(
    secret: str, forms: list[str]
) -> None:
    assert forms_of(secret) == forms


def test_forms_of__key_file__has_its_base64_and_each_line_of_the_key() -> None:
    begin, end = "-----BEGIN A KEY-----", "-----END A KEY-----"
    text = f"{begin}\nAAAA\n\nBBBB\n{end}\n"
    in_base64 = (
        "LS0tLS1CRUdJTiBBIEtFWS0tLS0tCkFBQUEKCkJCQkIKLS0tLS1FTkQgQSBLRVktLS0tLQo="
    )
    assert forms_of(text) == [text, in_base64, "AAAA", "BBBB"]


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://:secret@h/0", ["secret", "secret"]),
        ("amqp://user:secret@h//", ["secret", "secret"]),
        ("amqp://user:a%2Fb@h", ["a%2Fb", "a/b"]),
        ("amqp://user:a@b@h", ["a@b", "a@b"]),
        ("postgresql://u@h/d?password=a%20b", ["a%20b", "a b"]),
        ("postgresql://h/d?x=1&password=secret&y=2", ["secret", "secret"]),
        (
            "postgresql://u:one@h/d?password=two&sslpassword=th%20ree",
            ["one", "one", "two", "two", "th%20ree", "th ree"],
        ),
        ("redis://h:6379/0", []),
        ("redis://user@h:6379/0", []),
        ("http://h/rpc:a@b", []),
        ("user:secret@h", []),
        ("", []),
    ],
)
def test_passwords_in__each_url__are_the_passwords_as_written_and_decoded(
    url: str, found: list[str]
) -> None:
    assert passwords_in(url) == found


# --- malformed URLs -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "seen"),
    [
        ("broker_url", "redis://h:6379/0", "redis://h:6379/0"),
        ("broker_url", "redis://:secret@h/0", "(not shown)@h/0"),
        ("broker_url", "user:secret@h", "(not shown)@h"),
        ("broker_url", "a u:s@h b", "a (not shown)@h b"),
        ("broker_url", "user@h/path", "user@h/path"),
        ("an_endpoint", "user@h", "(not shown)@h"),
        ("an_endpoint", "http://h:1", "http://h:1"),
        ("an_endpoint", "http://h:1/", "http://h:1/"),
        ("an_endpoint", "http://h:1/key", "http://h:1/(not shown)"),
        ("an_endpoint", "http://h/a/b?c#d", "http://h/(not shown)"),
        ("an_endpoint", "http://h?key", "http://h?(not shown)"),
        ("an_endpoint", "http://h#key", "http://h#(not shown)"),
        ("an_endpoint", "h/key", "h/(not shown)"),
        (
            "an_endpoint",
            "http://h/key, ws://i#key,http://j",
            "http://h/(not shown), ws://i#(not shown),http://j",
        ),
        (
            "an_endpoint",
            "http://h/a,b ws://i/c",
            "http://h/(not shown) ws://i/(not shown)",
        ),
    ],
)
def test_without_password__each_text__shows_no_password_and_no_key_of_an_endpoint(
    name: str, text: str, seen: str
) -> None:
    assert without_password(name, text) == seen
