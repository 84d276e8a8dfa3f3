"""What of a URL may be a key: all but scheme, host and port. Pure.

Who sells access to nodes puts a customer's key into the path, the query or the user's name.
"""

import base64
import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from supervisor_tasks.redaction import LONG

LEAST_KEY = 4  # characters; what is shorter and stands alone is such as v3


def shown(url: str, number: int) -> str:
    """What may be seen of a URL; its place among others tells two keys at one host apart."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{parts.scheme}://{host}{'' if parts.port is None else f':{parts.port}'}#{number}"


def url_keys(url: str) -> list[str]:
    """What is hidden in any text: path, query and user as a whole, and those parts of them that are no plain words."""
    return sorted({*_whole(url), *(part for part in _parts(url) if _may_be_key(part))})


def all_keys(url: str) -> list[str]:
    """The same and all other parts, plain words too: for texts about that URL and nothing else."""
    return sorted({*_whole(url), *_parts(url)})


def _whole(url: str) -> Iterator[str]:
    """As they are written and as they are meant; a path and what is behind it with the slash before it."""
    parts = urlsplit(url)
    user, path, query = parts.netloc.rpartition("@")[0], parts.path.rstrip("/"), parts.query or parts.fragment
    behind = url.partition("://")[2].partition("/")
    for text in (user, path, path.strip("/") if "/" in path[1:] else "", query, behind[1] + behind[2]):
        if text.strip("/"):
            yield text
            yield unquote(text)
    if user:  # as HTTP says it
        yield base64.b64encode(unquote(user).encode()).decode()


def _parts(url: str) -> set[str]:
    parts = urlsplit(url)
    behind = [parts.netloc.rpartition("@")[0], parts.path, parts.query, parts.fragment]
    written = {part for text in behind for part in re.split(r"[/?&=:;,]", text) if part}
    return written | {unquote(part) for part in written}


def _may_be_key(part: str) -> bool:
    return len(part) >= LONG or (len(part) >= LEAST_KEY and not part.isalpha())
