"""How a message reaches a person or another system: by HTTP, by mail, or by a command
of the site.

Each channel either returns, and then the other side has taken the message, or raises
DeliveryError within a bounded time. No error shows a part of a URL that can be a key.
"""

import json
import os
import shlex
import signal
import smtplib
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import quote

import requests

from supervisor_tasks.config.redaction import Hide, hiding
from supervisor_tasks.config.url_secrets import all_keys
from supervisor_tasks.connections.bounded_http import session
from supervisor_tasks.errors import TransientError
from supervisor_tasks.notifications.delivery_rules import Policy
from supervisor_tasks.notifications.forms import json_form, mail_form
from supervisor_tasks.notifications.incident_messages import TEST, Notice, page_of

TIMEOUT_S = 10.0  # of HTTP, and of each step of SMTP
MAIL_LIMIT_S = 60.0  # of a whole mail: a server may talk without an end
BREAK_OFF_EVERY_S = 0.1
COMMAND_TIMEOUT_S = 30.0
MAX_BYTES = 2**20  # of an answer
MAX_ANSWER_CHARS = 300  # characters of an answer or of a command's output
MAX_RETRY_AFTER_S = 3600.0  # of the header Retry-After
LATE_AFTER_S = 300.0  # messages that fail for longer raise an alarm
GIVE_UP_AFTER_S = 86_400.0  # messages that fail for longer are parked
RUNBOOK_VARIABLE = "ALARM_RUNBOOK_URL"  # of a command
FOR_A_COMMAND = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR")


class DeliveryError(TransientError):
    """A channel did not take the message. A later try can succeed, not before
    `retry_after_s` seconds.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Channel(Protocol):
    """A way to send messages about alarms. With `repeat_s`, the raise is sent again and
    again until the alarm is over.
    """

    @property
    def repeat_s(self) -> float | None:
        """Seconds between two sendings of a raise; None if it is sent once."""

    def send(self, notice: Notice) -> None:
        """Hand the message over. Raises DeliveryError; a retry helps."""


@dataclass(frozen=True, slots=True)
class Notifier:
    """How this site gets its messages: the channels by name, when they are used, and
    which texts no message may show.
    """

    channels: Mapping[str, Channel] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    hide: Hide = str
    runbook_url: str = "docs/how-to/alarms"
    give_up_after_s: float = GIVE_UP_AFTER_S
    late_after_s: float = LATE_AFTER_S

    def page_of(self, alarm: str) -> str:
        """Where the page of an alarm is; for TEST, where all pages are listed."""
        if alarm == TEST:
            return page_of(self.runbook_url, "README")
        return page_of(self.runbook_url, quote(alarm, safe=""))


class SmtpSecurity(StrEnum):
    """How SMTP is encrypted."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Posts a message as JSON. `form` makes the body; `token` is a bearer token, empty
    for none.
    """

    url: str
    form: Callable[[Notice], Any]
    token: str = ""
    ca: Path | None = None
    repeat_s: float | None = None
    timeout_s: float = TIMEOUT_S

    def send(self, notice: Notice) -> None:
        """Post the message, with its key as the header Idempotency-Key. Only a status
        of 2xx counts. Raises DeliveryError; a retry helps.
        """
        hide = hiding([*all_keys(self.url), self.token], "(not shown)")
        headers = {"Idempotency-Key": notice.key}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        verify: bool | str = True
        if self.ca is not None:
            verify = str(self.ca)
        try:
            with session(self.timeout_s, MAX_BYTES) as http:
                answer = http.post(
                    self.url,
                    json=self.form(notice),
                    headers=headers,
                    timeout=self.timeout_s,
                    verify=verify,
                    allow_redirects=False,
                )
        except (OSError, HTTPException, requests.RequestException) as error:
            raise DeliveryError(hide(str(error) or type(error).__name__)) from error
        if not answer.ok:
            text = f"HTTP status {answer.status_code}: {answer.text[:MAX_ANSWER_CHARS]}"
            raise DeliveryError(
                hide(text), _retry_after_s(answer.headers.get("Retry-After", ""))
            )


@dataclass(frozen=True, slots=True)
class Mail:
    """Sends a message to one address by SMTP. The server must take it before it counts
    as sent.
    """

    server: str  # host:port
    tls: SmtpSecurity
    sender: str
    receiver: str
    user: str = ""
    password: str = ""
    ca: Path | None = None
    timeout_s: float = TIMEOUT_S
    limit_s: float = MAIL_LIMIT_S
    repeat_s: float | None = None

    def send(self, notice: Notice) -> None:
        """Send the mail. Its Message-ID has the message's key. Raises DeliveryError; a
        retry helps.
        """
        mail = mail_form(notice, self.sender, self.receiver, datetime.now(UTC))
        begun_s = time.monotonic()
        try:
            smtp = self._connect()
            try:
                if self.user:
                    smtp.login(self.user, self.password)
                smtp.send_message(mail, self.sender, [self.receiver])
            finally:
                # the server has already taken or rejected the mail
                with suppress(OSError, smtplib.SMTPException):
                    smtp.quit()
                smtp.close()
        except (OSError, smtplib.SMTPException, ValueError) as error:
            hide = hiding([self.password], "(not shown)")
            text = f"{type(error).__name__}: {error}"[:MAX_ANSWER_CHARS]
            if time.monotonic() - begun_s > self.limit_s:
                text = f"the server has not taken the mail within {self.limit_s:g} s ({text})"
            raise DeliveryError(hide(text)) from error

    def _connect(self) -> smtplib.SMTP:
        host, _, port = self.server.rpartition(":")
        host, here = host.strip("[]"), socket.gethostname()
        context = ssl.create_default_context(cafile=self.ca)
        if self.tls is SmtpSecurity.TLS:
            return _LimitedSmtpOverTls(
                self.limit_s,
                host,
                int(port),
                here,
                timeout=self.timeout_s,
                context=context,
            )
        smtp = _LimitedSmtp(self.limit_s, host, int(port), here, timeout=self.timeout_s)
        if self.tls is SmtpSecurity.STARTTLS:
            try:
                smtp.starttls(context=context)
            except BaseException:
                smtp.close()
                raise
        return smtp


class _LimitedSmtp(smtplib.SMTP):
    """A connection that is broken off after `limit_s`. smtplib's own limit is for each
    piece that arrives, and a server may send one byte after the other.
    """

    def __init__(self, limit_s: float, *where: Any, **options: Any) -> None:
        self._limit_s = limit_s
        self._ended = threading.Event()
        super().__init__(*where, **options)

    def connect(self, *where: Any, **options: Any) -> tuple[int, bytes]:
        """Connect, and begin to count the time."""
        threading.Thread(target=self._break_off, name="mail", daemon=True).start()
        try:
            return super().connect(*where, **options)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._ended.set()
        super().close()

    def _break_off(self) -> None:
        """Shut the socket down at the limit, again and again until the connection is
        closed: STARTTLS puts another socket in its place.
        """
        if self._ended.wait(self._limit_s):
            return
        while not self._ended.wait(BREAK_OFF_EVERY_S):
            connection = self.sock
            with suppress(OSError):  # closed by now
                if connection is not None:
                    connection.shutdown(socket.SHUT_RDWR)


class _LimitedSmtpOverTls(_LimitedSmtp, smtplib.SMTP_SSL):
    """The same with TLS from the beginning."""


@dataclass(frozen=True, slots=True)
class Command:
    """Runs a program with the message as JSON on its standard input. Exit status 0
    counts as taken.
    """

    words: Sequence[str]
    timeout_s: float = COMMAND_TIMEOUT_S
    repeat_s: float | None = None

    def send(self, notice: Notice) -> None:
        """Run the command, without a shell and without the worker's variables;
        ALARM_RUNBOOK_URL has the alarm's page. Raises DeliveryError; a retry helps.
        """
        environment = {
            name: os.environ[name] for name in FOR_A_COMMAND if name in os.environ
        }
        environment[RUNBOOK_VARIABLE] = notice.runbook_url
        with tempfile.TemporaryFile() as message, tempfile.TemporaryFile() as output:
            message.write(json.dumps(json_form(notice)).encode())
            message.seek(0)
            try:
                process = subprocess.Popen(
                    self.words,
                    stdin=message,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise DeliveryError(
                    f"{self._shown}: {error.strerror or error}"
                ) from error
            status = self._wait(process)
            if status != 0:
                raise DeliveryError(
                    f"{self._shown} ended with status {status}: {_end_of(output)}"
                )

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        """Wait for the command's end. On a time-out, end it with all processes that it
        has started.
        """
        try:
            return process.wait(self.timeout_s)
        except subprocess.TimeoutExpired as error:
            raise DeliveryError(
                f"{self._shown} has not ended within {self.timeout_s:g} s"
            ) from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @property
    def _shown(self) -> str:
        return shlex.quote(self.words[0])  # an argument can be a token


def _end_of(output: IO[bytes]) -> str:
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - MAX_ANSWER_CHARS))
    return output.read(MAX_ANSWER_CHARS).decode(errors="replace").strip()


def _retry_after_s(text: str) -> float:
    """The seconds in a header Retry-After; 0 if it has none, or a date."""
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_S)
    return 0.0
