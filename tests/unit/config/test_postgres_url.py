"""The ledger's URL: SQLAlchemy and libpq read the canonical one alike, and no error
shows a part of it.
"""

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from supervisor_tasks.config.postgres_url import canonical, for_libpq

LOGIN = {"user": "u", "password": "p"}
TEXTS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1
)


def read_by_both(url: str) -> dict[str, Any]:
    """Return libpq's keywords of a URL, after a check that SQLAlchemy reads the same;
    ports of hosts that have none are left out.
    """
    untyped: Any = PGDialect_psycopg
    _, options = untyped().create_connect_args(make_url(canonical(url)))
    given = {name: str(value) for name, value in options.items()}
    read: dict[str, Any] = conninfo_to_dict(for_libpq(url))
    given["port"], read["port"] = given.get("port", ""), read.get("port", "")
    if not given["port"].strip(","):
        given["port"] = read["port"]
    assert given == read
    return {name: value for name, value in read.items() if value}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:p@h:5/d?sslmode=require",
        "postgresql+psycopg://u:p@[::1]:5/d",
        "postgresql+psycopg://postgres@/postgres?host=/run/postgres",
        "postgresql+psycopg://u:p@/d?host=a,b&port=1,2",
        "postgresql+psycopg:///d",
    ],
)
def test_canonical__url_that_both_read_alike__stays(url: str) -> None:
    assert canonical(url) == url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("//u:50%off@h/d", {"user": "u", "password": "50%off", "host": "h"}),
        ("//u:a/b#c?d@h/d", {"user": "u", "password": "a/b#c?d", "host": "h"}),
        ("//u:p@a:1,b/d", {**LOGIN, "host": "a,b", "port": "1,"}),
        ("//u:p@a,b/d", {**LOGIN, "host": "a,b"}),
        ("//u:p@/d?host=a:1&host=b:2", {**LOGIN, "host": "a,b", "port": "1,2"}),
        ("//u:p@/d?host=a,b&port=5", {**LOGIN, "host": "a,b", "port": "5,5"}),
        ("//u:p@h:5/d?host=/run/a:b", {**LOGIN, "host": "/run/a:b", "port": "5"}),
        ("//u:p@%2Frun:5/d", {**LOGIN, "host": "/run", "port": "5"}),
        ("//u:p@/d?host=::1", {**LOGIN, "host": "::1"}),
        ("//u:p@h/d?options=-c%20a%3D1+-c+b=2", {**LOGIN, "options": "-c a=1 -c b=2"}),
        ("//h:5/d?user=u@site", {"user": "u@site", "host": "h", "port": "5"}),
    ],
)
def test_canonical__url_that_they_read_differently__is_read_alike(
    url: str, expected: dict[str, str]
) -> None:
    read = read_by_both(f"postgresql:{url}")
    assert read == {"host": read["host"], "dbname": "d", **expected}


@given(TEXTS, TEXTS, TEXTS)
def test_canonical__any_text_with_percent_signs__is_read_as_it_was(
    user: str, password: str, database: str
) -> None:
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    url = f"postgresql://{login}@h:5/{quote(database, safe='')}"
    read = {"user": user, "password": password, "dbname": database}
    assert read_by_both(url) == {**read, "host": "h", "port": "5"}
    assert canonical(canonical(url)) == canonical(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgre://u:secret@h/d",
        "postgresql:u:secret@h/d",
        "postgresql://u:secret@h:port/d",
        "postgresql://u:secret@a,b/d?port=1,2,3",
        "postgresql://u:secret@/d?host=a,b&port=five",
        "postgresql://u:sec@ret@h/d",
        "postgresql://u:sec@h/ret@d",
        "postgresql://u:5432/secret?x=y@h/d",
        "postgresql://u:sec ret@h/d",
        "postgresql://u:sec%00ret@h/d",
        "postgresql://u:sec@a?ret@h/d",
        "postgresql://u:secret@h/d?no_option_of_libpq=1",
        "postgresql://u:secret@h/d?sslmode=require&sslmode=disable",
    ],
)
def test_canonical__url_with_no_or_several_readings__is_refused_and_not_shown(
    url: str,
) -> None:
    with pytest.raises(ValueError, match=r"^a URL such as postgresql://") as caught:
        canonical(url)
    error: BaseException | None = caught.value
    while error is not None:  # a traceback would show those before, too
        assert "sec" not in str(error)
        error = error.__context__
