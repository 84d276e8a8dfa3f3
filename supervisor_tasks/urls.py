"""What of a URL may be a key. Pure.

Who sells access to nodes puts a customer's key into the path or the query of the URL.
"""

import re
from urllib.parse import unquote, urlsplit

LEAST_KEY = 8  # characters; shorter parts are words such as rpc


def url_keys(url: str) -> list[str]:
    """Path, query and user of a URL, whole and in parts, as they are written and as they are meant; the longest first."""
    parts = urlsplit(url)
    whole = [parts.path.strip("/"), parts.query, parts.netloc.rpartition("@")[0]]
    written = {part for part in (*whole, *re.split(r"[/?&=:]", "/".join(whole))) if len(part) >= LEAST_KEY}
    return sorted(written | {unquote(part) for part in written}, key=lambda part: (-len(part), part))


def without_keys(text: str, url: str) -> str:
    """A text that may name a URL, without what of it may be a key."""
    for key in url_keys(url):
        text = text.replace(key, "(not shown)")
    return text
