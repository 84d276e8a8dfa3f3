"""The ledger's URL: only one that SQLAlchemy and libpq read alike is taken, and no error
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

from supervisor_tasks.connections.postgres_url import canonical, for_libpq

LOGIN = {"user": "u", "password": "p"}
TEXTS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1
)


def read_by_both(url: str) -> dict[str, Any]:
    """Return libpq's keywords of a URL, after a check that SQLAlchemy reads the same."""
    untyped: Any = PGDialect_psycopg
    _, options = untyped().create_connect_args(make_url(canonical(url)))
    read: dict[str, Any] = conninfo_to_dict(for_libpq(url))
    assert read == {name: str(value) for name, value in options.items()}
    return read


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("//u:p@h:5/d", {**LOGIN, "host": "h", "port": "5"}),
        ("//u:p@h/d?sslmode=require", {**LOGIN, "host": "h", "sslmode": "require"}),
        ("//u:p@[::1]:5/d", {**LOGIN, "host": "::1", "port": "5"}),
        ("//u@/d?host=/run/postgres", {"user": "u", "host": "/run/postgres"}),
        ("//u:p@/d?host=a,b&port=1,2", {**LOGIN, "host": "a,b", "port": "1,2"}),
        ("//u:p@h:5/d?host=/run", {**LOGIN, "host": "/run", "port": "5"}),
        ("//u@/d?host=/run/a:b", {"user": "u", "host": "/run/a:b"}),
        ("//h/d?options=-c%20a%3D1", {"host": "h", "options": "-c a=1"}),
        ("///d", {}),
    ],
)
@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_canonical__url_that_both_read_alike__is_taken(
    scheme: str, url: str, expected: dict[str, str]
) -> None:
    assert canonical(f"{scheme}:{url}") == f"postgresql+psycopg:{url}"
    assert read_by_both(f"{scheme}:{url}") == {"dbname": "d", **expected}


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
        "postgresql://u:50%offsecret@h/d",
        "postgresql://u:sec/ret@h/d",
        "postgresql://u:sec#ret@h/d",
        "postgresql://u:secret@a,b/d",
        "postgresql://u:secret@a:1,b:2/d",
        "postgresql://u:secret@/d?host=a,b",
        "postgresql://u:secret@/d?host=a,b&port=5",
        "postgresql://u:secret@/d?host=a:1",
        "postgresql://u:secret@/d?host=a&host=b",
        "postgresql://u:secret@/d?port=1,2",
        "postgresql://u:secret@h/d?options=-c+a",
        "postgresql://u:secret@/d?host=a,b&port=five",
        "postgresql://u:sec@ret@h/d",
        "postgresql://u:sec@h/ret@d",
        "postgresql://u:5432/secret?x=y@h/d",
        "postgresql://u:sec ret@h/d",
        "postgresql://u:sec%00ret@h/d",
        "postgresql://u:sec%DBret@h/d",
        "postgresql://u:sec@a?ret@h/d",
        "postgresql://u:secret@h/d?no_option_of_libpq=1",
        "postgresql://u:secret@h/d?ssl=true",
        "postgresql://u:secret@h/d?sslmode=require&sslmode=disable",
    ],
)
def test_canonical__url_with_no_or_two_readings__is_refused_and_not_shown(
    url: str,
) -> None:
    with pytest.raises(ValueError, match=r"^a URL such as postgresql://") as caught:
        canonical(url)
    error: BaseException | None = caught.value
    while error is not None:  # a traceback would show those before, too
        assert "sec" not in str(error)
        error = error.__context__
