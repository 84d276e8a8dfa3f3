"""The parts of a URL that can be a key: all but scheme, host and port. Pure.

Companies that sell access to nodes put a customer's key into the path, the query or the
user's name.
"""

import base64
import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from supervisor_tasks.config.redaction import LONG_SECRET_CHARS

LEAST_KEY = 4  # characters; a shorter part is no key but, for example, v3


def shown(url: str, number: int) -> str:
    """Return the part of a URL that may be shown. `number` is its place among the URLs:
    two keys can be for one host.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    if parts.port is not None:
        host += f":{parts.port}"
    return f"{parts.scheme}://{host}#{number}"


def url_keys(url: str) -> list[str]:
    """Return what must be hidden in every text: path, query and user, and their parts
    except plain words.
    """
    return sorted({*_whole(url), *filter(_may_be_key, _parts(url))})


def all_keys(url: str) -> list[str]:
    """Return the keys of `url_keys` and all other parts, also plain words: for texts
    about this URL only.
    """
    return sorted({*_whole(url), *_parts(url)})


def _whole(url: str) -> Iterator[str]:
    """Yield user, path, query, and all that follows the host, as written and decoded.

    The path is with the slash before it, and, if it has several parts, also without.
    """
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    path = parts.path.rstrip("/")
    bare_path = ""
    if "/" in path[1:]:
        bare_path = path.strip("/")
    query = parts.query or parts.fragment
    _, slash, rest = url.partition("://")[2].partition("/")
    for text in (user, path, bare_path, query, slash + rest):
        if text.strip("/"):
            yield text
            yield unquote(text)
    if user:  # as in HTTP's Authorization header
        yield base64.b64encode(unquote(user).encode()).decode()


def _parts(url: str) -> set[str]:
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    written = set[str]()
    for text in (user, parts.path, parts.query, parts.fragment):
        written.update(re.split(r"[/?&=:;,]", text))
    written.discard("")
    return written | set(map(unquote, written))


def _may_be_key(part: str) -> bool:
    if len(part) >= LONG_SECRET_CHARS:
        return True
    return len(part) >= LEAST_KEY and not part.isalpha()


def forms_of(secret: str) -> list[str]:
    """Return a secret and its parts that libraries may log: a key without 0x, a key
    file's lines, a URL's password.
    """
    if secret.startswith("-----BEGIN"):
        lines = [
            line
            for line in secret.splitlines()
            if line and not line.startswith("-----")
        ]
        return [secret, base64.b64encode(secret.encode()).decode(), *lines]
    return [secret, secret.removeprefix("0x"), *passwords_in(secret)]


def passwords_in(url: str) -> list[str]:
    """Return the passwords in a URL, each as written and decoded."""
    written = [
        *re.findall(r"://[^:/@]*:(\S+)@", url),
        *re.findall(r"[?&](?:ssl)?password=([^&\s]+)", url),
    ]
    return [text for password in written for text in (password, unquote(password))]


def without_password(name: str, text: str) -> str:
    """Hide passwords, and keys after a host: a malformed URL can still contain them."""
    text = re.sub(r"[^/\s]*:\S*@", "(not shown)@", text)
    if "endpoint" not in name:
        return text
    text = re.sub(r"[^/\s,]+@", "(not shown)@", text)
    return re.sub(r"(?<![:/])([/?#])\S+?(?=,\s*\w+://|\s|$)", r"\1(not shown)", text)
