"""HTTP with limits: an answer takes no longer than a deadline and is no larger than a
limit, also from a hostile server.

The timeout of `requests` applies to each read: a node that sends a byte now and then
would hold a thread for ever. Bytes are counted before they are decoded. So the client
asks for no compression and accepts none: 600 KiB may unpack to 600 MiB. A redirect is
an error: it would let the node choose which server inside this network is asked.
"""

import io
import socket
import time
from collections.abc import Mapping
from http.client import HTTPResponse
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

MAX_CONNECTIONS = 16
MAX_BYTES = 64 * 2**20


def session(deadline_s: float, most_bytes: int = MAX_BYTES) -> requests.Session:
    """A session whose answers are bounded in time and size. The deadline runs from the
    end of the request until the last byte has come.
    """
    return _bounded(requests.Session(), deadline_s, most_bytes)


def prepared_session(deadline_s: float) -> requests.Session:
    """As `session`, for many requests to few addresses: see _PreparedSession."""
    return _bounded(_PreparedSession(), deadline_s, MAX_BYTES)


def _bounded(
    bounded: requests.Session, deadline_s: float, most_bytes: int
) -> requests.Session:
    bounded.headers["Accept-Encoding"] = "identity"
    adapter = _Adapter(deadline_s, most_bytes)
    bounded.mount("http://", adapter)
    bounded.mount("https://", adapter)
    return bounded


class _PreparedSession(requests.Session):
    """Prepares the request to an address once: its headers, credentials, proxy and
    certificates stay the same, and only the body is new. `requests` itself reads them
    from the environment for each request, which is a third of its CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self._prepared: dict[str, tuple[requests.PreparedRequest, dict[str, Any]]] = {}

    def post(  # type: ignore[override]  # the caller sends bytes, and none of the other kinds of content
        self,
        url: str,
        data: bytes,
        *,
        headers: Mapping[str, str],
        timeout: float,
        stream: bool = False,
    ) -> requests.Response:
        """Send these bytes. The first call for an address decides on its headers."""
        if url not in self._prepared:
            first = self.prepare_request(
                requests.Request("POST", url, headers=dict(headers))
            )
            self._prepared[url] = (
                first,
                dict(self.merge_environment_settings(url, {}, stream, None, None)),
            )
        prepared, settings = self._prepared[url]
        request = prepared.copy()
        request.prepare_body(data, None)
        return self.send(request, timeout=timeout, allow_redirects=False, **settings)


class _Bounded(io.RawIOBase):
    """The bytes of a socket, until a deadline and up to a size. Raises TimeoutError or
    OSError beyond these limits.
    """

    def __init__(self, sock: socket.socket, deadline_s: float, most_bytes: int) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline_s = deadline_s
        self._ends_s = time.monotonic() + deadline_s
        self._most_bytes = most_bytes
        self._room = most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(
                f"the answer took longer than {self._deadline_s:g} s, the limit"
            )
        self._sock.settimeout(left_s)
        count = self._raw.readinto(buffer) or 0
        self._room -= count
        if self._room < 0:
            raise OSError(
                f"found an answer of {self._most_bytes - self._room} bytes or more; expected at most {self._most_bytes}"
            )
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class NotAcceptedError(requests.RequestException):
    """The answer has a form that the client did not ask for."""


class _Adapter(HTTPAdapter):
    def __init__(self, deadline_s: float, most_bytes: int) -> None:
        self._pools = _pools(deadline_s, most_bytes)
        super().__init__(pool_maxsize=MAX_CONNECTIONS)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def send(self, *args: Any, **kwargs: Any) -> requests.Response:
        response = super().send(*args, **kwargs)
        reason = _why_not_accepted(response)
        if reason:
            response.close()
            raise NotAcceptedError(reason)
        return response

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = self._pools
        return manager


def _why_not_accepted(response: requests.Response) -> str:
    """Why the client does not accept the answer; empty when it does. The body is not
    read for that.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        return f"the answer is compressed ({encoding[:20]!r}), which was not asked for"
    if response.is_redirect:
        return (
            f"HTTP status {response.status_code} leads elsewhere, where no request goes"
        )
    return ""


def _pools(deadline_s: float, most_bytes: int) -> dict[str, type[HTTPConnectionPool]]:
    """The connection pools by scheme. urllib3 takes the behaviour of its connections
    only as classes.
    """

    class Response(HTTPResponse):
        def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            self.fp.close()
            self.fp = io.BufferedReader(_Bounded(sock, deadline_s, most_bytes), 65536)

    class Plain(HTTPConnection):
        response_class = Response

    class Tls(HTTPSConnection):
        response_class = Response

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}
