"""HTTP with slurmrestd: over TLS, over a Unix socket, or in plain text on this machine.

Connections are kept: slurmrestd 22.05 sometimes ends a connection with `Connection:
close` before it has answered. A kept connection that slurmrestd has closed is not used
again. If slurmrestd closes it while a request is sent, the answer counts as lost.
"""

import json
import socket
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    SSLError,
)
from urllib3.util import Timeout

from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.instruments import REST_REQUESTS, timed
from supervisor_tasks.slurm import rest_versions
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from supervisor_tasks.slurm.rest_answers import RestAnswer

CONNECT_TIMEOUT_S = 10.0
MAX_BYTES = 2**28  # of one answer; a job has 4 kB
KEPT_CONNECTIONS = 16  # kept at once; more are made where more threads ask
_PIECE = 2**16
_NO_SUCH_PATH = 404


class RestUnavailableError(SlurmUnavailableError):
    """slurmrestd takes no connection, or has no version of its API that the worker
    knows. Nothing was done; retry later.
    """


class RestCutError(OutcomeUnknownError):
    """A request was sent, and its answer did not come. slurmrestd may have carried it
    out.
    """


class RestClient:
    """The client of one slurmrestd. `url` is unix:///path, https://host:port or
    http://host:port. `ca` is the authority (PEM) of its certificate; without it, the
    machine's authorities count. Threads may share it.
    """

    def __init__(
        self,
        url: str,
        ca: Path | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.url = url
        self._connect_timeout_s = connect_timeout_s
        self._pool = _pool(url, ca)
        self._version = rest_versions.OLD  # the version that slurmrestd offered last

    def request(
        self,
        method: str,
        path: str,
        user: str,
        token: str,
        *,
        timeout_s: float,
        body: Mapping[str, Any] | None = None,
    ) -> RestAnswer:
        """Send one request as this user. The request and the answer have the form of
        v0.0.38, also where slurmrestd has another version. Raises RestUnavailableError
        when the request was certainly not carried out (a retry helps), and RestCutError
        when the whole answer did not arrive within `timeout_s`.
        """
        headers = {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": token}
        if body is not None:
            headers["Content-Type"] = "application/json"
        until_s = time.monotonic() + timeout_s
        with timed(REST_REQUESTS, f"{method} {_kind(path)}"):
            try:
                return self._answered(method, path, headers, body, until_s)
            except (HTTPError, OSError, ValueError) as error:
                if _is_before_the_request(error):
                    raise RestUnavailableError(
                        f"slurmrestd at {self.url} takes no connection: {error}"
                    ) from error
                raise RestCutError(
                    f"slurmrestd at {self.url} gave no whole answer: {error}"
                ) from error

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _answered(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Mapping[str, Any] | None,
        until_s: float,
    ) -> RestAnswer:
        """Ask in the version that slurmrestd offered last, and in the others if
        slurmrestd has no such path: then slurmrestd has asked slurmctld nothing.
        """
        offered_last = self._version
        versions = sorted(
            rest_versions.VERSIONS, key=lambda version: version != offered_last
        )
        for version in versions:
            text: bytes | None = None
            if body is not None:
                text = json.dumps(rest_versions.written(version, body)).encode()
            answer = self._exchange(
                method, f"/slurm/{version}/{path}", headers, text, until_s
            )
            if answer.status != _NO_SUCH_PATH or answer.is_unknown_job:
                self._version = version
                return RestAnswer(
                    answer.status, rest_versions.read(version, answer.body)
                )
        wanted = " or ".join(rest_versions.VERSIONS)
        raise RestUnavailableError(
            f"slurmrestd at {self.url} has no API of {wanted}; it answers {answer.error_text!r}"
        )

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        text: bytes | None,
        until_s: float,
    ) -> RestAnswer:
        left_s = max(until_s - time.monotonic(), 0.001)
        response = self._pool.urlopen(
            method,
            path,
            body=text,
            headers=dict(headers),
            retries=False,
            redirect=False,
            timeout=Timeout(connect=min(self._connect_timeout_s, left_s), read=left_s),
            preload_content=False,
        )
        try:
            return RestAnswer(response.status, _json(_read(response, until_s)))
        finally:
            response.close()


def _is_before_the_request(error: Exception) -> bool:
    """Whether the connection was not made, or showed a certificate that is not
    accepted.
    """
    if isinstance(error, NewConnectionError | ConnectTimeoutError):
        return True
    if not isinstance(error, SSLError):
        return False
    if not error.args:
        return False
    return isinstance(error.args[0], ssl.SSLCertVerificationError)


def _read(response: urllib3.BaseHTTPResponse, until_s: float) -> bytes:
    """Read the body. urllib3 bounds only each read, so this function bounds the whole:
    it takes what has come, and does not wait until a piece is full.
    """
    if encoding := response.headers.get("Content-Encoding"):
        # a small answer can become a large one
        raise OSError(f"found an answer in the encoding {encoding!r}; expected none")
    body = bytearray()
    while piece := response.read1(_PIECE):
        body += piece
        if len(body) > MAX_BYTES or time.monotonic() > until_s:
            raise OSError(
                f"the answer is too long or takes too long ({len(body)} bytes)"
            )
    return bytes(body)


def _json(text: bytes) -> Mapping[str, Any]:
    """Return the answer's object. An answer that is no object (a 404 of another
    program) counts as an error. slurmrestd passes on the bytes of users' texts, also
    those that are no UTF-8.
    """
    try:
        shown = json.loads(text.decode(errors="replace"))
    except (ValueError, RecursionError):
        shown = None
    if isinstance(shown, dict):
        return shown
    return {
        "errors": [
            {"error": f"no JSON object: {text[:200].decode(errors='replace')!r}"}
        ]
    }


def _kind(path: str) -> str:
    """Return the path without ids, so that the number of series is bounded."""
    words = list[str]()
    for word in path.split("/"):
        if word.isdecimal():
            words.append("ID")
        else:
            words.append(word)
    return "/".join(words)


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, **options: Any) -> None:
        super().__init__("localhost", **options)
        self._path = path

    def _new_conn(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_seconds(self.timeout))
            sock.connect(self._path)
        except OSError as error:
            sock.close()
            raise NewConnectionError(self, str(error)) from error
        return sock


def _seconds(timeout: object) -> float | None:
    if isinstance(timeout, int | float):
        return float(timeout)
    return None


class _UnixPool(HTTPConnectionPool):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", maxsize=KEPT_CONNECTIONS)
        self._path = path

    def _new_conn(self) -> HTTPConnection:
        return _UnixConnection(self._path, timeout=self.timeout.connect_timeout)


def _pool(url: str, ca: Path | None) -> HTTPConnectionPool:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return _UnixPool(unquote(parts.path))
    host = parts.hostname or ""
    if parts.scheme != "https":
        return HTTPConnectionPool(host, parts.port, maxsize=KEPT_CONNECTIONS)
    ca_certs: str | None = None
    if ca is not None:
        ca_certs = str(ca)
    return urllib3.HTTPSConnectionPool(
        host,
        parts.port,
        cert_reqs="CERT_REQUIRED",
        ca_certs=ca_certs,
        maxsize=KEPT_CONNECTIONS,
    )
