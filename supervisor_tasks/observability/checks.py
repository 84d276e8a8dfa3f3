"""How a process checks whether a service answers. None of these checks needs a key, and
each ends within TIMEOUT_S.
"""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor_tasks.connections.postgres_url import for_libpq
from supervisor_tasks.errors import SupervisorError

TIMEOUT_S = 3.0
NAME = "supervisor probe"  # of the connection in Postgres
BANNER = b"SSH-"


class NoAnswerError(Exception):
    """A service accepts connections, but does not answer as it must."""


class DatabaseAnswers:
    """Sends a query to Postgres, over a connection that it keeps. `url` has
    SQLAlchemy's form.
    """

    def __init__(self, url: str) -> None:
        self._url = for_libpq(url)
        self._connection: Any = None

    def __call__(self) -> None:
        """Run the check. Raises psycopg.Error."""
        import psycopg  # Flower needs none

        from supervisor_tasks.ledger.driver import answering_within

        try:
            if self._connection is None:
                self._connection = psycopg.connect(
                    self._url,
                    autocommit=True,
                    application_name=NAME,
                    **answering_within(int(TIMEOUT_S)),
                )
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            raise


class BrokerAnswers:
    """Sends a PING to Redis, over a connection of its own. `tls` has the form of
    Celery's broker_use_ssl.
    """

    def __init__(self, url: str, tls: dict[str, Any] | None) -> None:
        self._url = url
        self._tls = tls

    def __call__(self) -> None:
        """Run the check. Raises an error of kombu or redis."""
        from kombu.connection import Connection

        timeouts = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        untyped: Any = Connection
        with untyped(
            self._url, ssl=self._tls or False, transport_options=timeouts
        ) as connection:
            # `default_channel` would try again for seconds
            connection.channel().client.ping()


class ChainAnswers:
    """Asks one RPC endpoint after the other for the chain's id, until one answers."""

    def __init__(self, urls: Sequence[str]) -> None:
        # only the worker of the chain queue needs it
        from supervisor_tasks.chain.rpc.client import Rpc

        self._endpoints = [Rpc.at(url, TIMEOUT_S) for url in urls]

    def __call__(self) -> None:
        """Run the check. Raises the last endpoint's RpcUnavailableError or RpcError if
        none answers.
        """
        failure: Exception = NoAnswerError("no endpoint")
        for endpoint in self._endpoints:
            try:
                endpoint.call("eth_chainId")
                return
            except SupervisorError as error:
                failure = error
        raise failure


class LoginNodeAnswers:
    """Reads sshd's banner. `address` is host:port."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")

    def __call__(self) -> None:
        """Run the check. Raises OSError or NoAnswerError."""
        with socket.create_connection(
            (self._host.strip("[]"), int(self._port)), TIMEOUT_S
        ) as connection:
            if not connection.recv(len(BANNER)).startswith(BANNER):
                raise NoAnswerError("no SSH server")


class RestAnswers:
    """Sends slurmrestd a request without a token. Any HTTP response counts. `ca` is the
    authority of its certificate.
    """

    def __init__(self, url: str, ca: Path | None) -> None:
        # only a worker needs it
        from supervisor_tasks.slurm.rest_client import RestClient

        self._client = RestClient(url, ca, connect_timeout_s=TIMEOUT_S)

    def __call__(self) -> None:
        """Run the check. Raises RestUnavailableError or RestCutError."""
        self._client.request("GET", "ping", "", "", timeout_s=TIMEOUT_S)
