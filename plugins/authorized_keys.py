"""sshd's AuthorizedKeysCommand: asks the supervisor for the key that the supervisor
logs in with, and prints it.

The key is valid for every customer of the cluster: the supervisor decides as which
customer it logs in. For root, users of the system and users of the site the program
prints nothing and does not ask the supervisor, unless --allow names them.

sshd waits for this program at each login, so it uses only the standard library, and the
small part of HTTP/2 that one gRPC call needs. The operator copies this one file to a
login node, so it repeats the code of `proof.py` for `--key`. It runs with Python 3.8 and
later: login nodes have older ones than the supervisor.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import os
import re
import resource
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

METHOD = "/supervisor.v1alpha1.SshAPI/FetchAuthorizedKeys"
REQUEST = b""  # a FetchAuthorizedKeysRequest has no field
CUSTOMER = re.compile("0x[0-9a-fA-F]{40}")
# from the start of this process; sshd and its client wait for it
ANSWERS_WITHIN_S = 0.9
# for the supervisor's answer, on a machine that took long to start this process
LEAST_S = 0.5
MAX_BYTES = 64 * 1024
LEAST_KEY_CHARACTERS = 32
LOOPBACK = re.compile(r"127(\.\d+){3}|\[?::1\]?|localhost")

_BROKEN_OFF = "the supervisor broke the call off before its answer; see the log of its gRPC process"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_STREAM = 1
_LARGEST_FRAME = 2**14  # HTTP/2's limit while our settings allow no larger frame


class CallError(Exception):
    """The supervisor does not answer, or its answer is not a key."""


class Http2Connection:
    """A connection to the supervisor, with a deadline."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock, self._deadline_s = sock, deadline_s

    def call(
        self,
        scheme: str,
        authority: str,
        message: bytes,
        metadata: Sequence[tuple[str, str]],
    ) -> bytes:
        """Make one unary call; returns the answer's message. Raises CallError; a retry
        helps.
        """
        headers = [
            (":method", "POST"),
            (":scheme", scheme),
            (":path", METHOD),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *metadata,
        ]
        block = b"".join(_header(name, value) for name, value in headers)
        body = b"\0" + len(message).to_bytes(4, "big") + message
        settings = _frame(_SETTINGS, 0, 0, b"")
        request = _frame(_HEADERS, _END_HEADERS, _STREAM, block) + _frame(
            _DATA, _END_STREAM, _STREAM, body
        )
        self._sock.sendall(_PREFACE + settings + request)
        return _message(self._answer())

    def _answer(self) -> bytes:
        """Read the data of the stream until its end."""
        data = bytearray()
        while len(data) <= MAX_BYTES:
            kind, flags, stream, payload = self._next_frame()
            self._acknowledge(kind, flags, payload)
            if kind == _GOAWAY:
                raise CallError(_BROKEN_OFF)
            if stream != _STREAM:
                continue
            if kind == _RST_STREAM:
                raise CallError(_BROKEN_OFF)
            if kind == _DATA:
                data += _without_padding(payload, flags)
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                return bytes(data)
        raise CallError(
            f"found an answer of more than {MAX_BYTES} bytes; expected the keys of one user:"
            " see whether the address is the supervisor's"
        )

    def _acknowledge(self, kind: int, flags: int, payload: bytes) -> None:
        """Answer the server's settings and its pings; HTTP/2 requires it."""
        answers = {_SETTINGS: b"", _PING: payload}
        if kind in answers and not flags & _ACK:
            self._sock.sendall(_frame(kind, _ACK, 0, answers[kind]))

    def _next_frame(self) -> tuple[int, int, int, bytes]:
        """Read a frame: its kind, flags, stream and payload."""
        head = self._read(9)
        length = int.from_bytes(head[:3], "big")
        if length > _LARGEST_FRAME:
            raise CallError(
                "the server that answers is no gRPC server; expected the supervisor: check the address"
            )
        return (
            head[3],
            head[4],
            int.from_bytes(head[5:9], "big") & 0x7FFFFFFF,
            self._read(length),
        )

    def _read(self, number: int) -> bytes:
        data = b""
        while len(data) < number:
            self._sock.settimeout(_left_s(self._deadline_s))
            piece = self._sock.recv(number - len(data))
            if not piece:
                raise CallError(
                    "the supervisor closed the connection before its answer; see the log of its gRPC process"
                )
            data += piece
        return data


def _without_padding(payload: bytes, flags: int) -> bytes:
    if not flags & _PADDED:
        return payload
    padding = int.from_bytes(payload[:1], "big")
    return payload[1 : len(payload) - padding]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big")
        + bytes((kind, flags))
        + stream.to_bytes(4, "big")
        + payload
    )


def _header(name: str, value: str) -> bytes:
    """Encode a header in full; the server does not store it for later ones (HPACK:
    literal without indexing).
    """
    return b"\0" + _sized(name.encode()) + _sized(value.encode())


def _sized(text: bytes) -> bytes:
    """Put HPACK's length before the text: 7 bits, or 127 and the rest in groups of 7
    bits, the lowest first.
    """
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    rest, sizes = length - 127, [127]
    while rest > 127:
        sizes.append(128 | rest & 127)
        rest >>= 7
    return bytes((*sizes, rest)) + text


def _message(data: bytes) -> bytes:
    """Return the message in an answer. Raises CallError.

    A failed call has no message: the reason is in compressed headers, and in the log of
    the supervisor's gRPC process.
    """
    if not data:
        raise CallError(
            "the supervisor refuses the call: see the log of its gRPC process"
        )
    head, message = data[:5], data[5:]
    if head != b"\0" + len(message).to_bytes(4, "big"):
        raise CallError(
            "the supervisor's answer is not one uncompressed message; expected its gRPC process: check the address"
        )
    return message


def keys_in(message: bytes) -> str:
    """Return the text in a FetchAuthorizedKeysResponse (field 1). Raises CallError; a
    retry helps.
    """
    if not message:
        return ""
    length, text_at = 0, 1
    for shift in (0, 7, 14, 21):
        if text_at >= len(message):
            break
        byte = message[text_at]
        length |= (byte & 127) << shift
        text_at += 1
        if byte < 128:
            break
    text = message[text_at:]
    if message[0] != 0x0A or length != len(text):
        raise CallError(
            "the supervisor's answer is no FetchAuthorizedKeysResponse: use the command and the supervisor of one version"
        )
    return text.decode()


def fetch(options: argparse.Namespace, deadline_s: float) -> str:
    """Ask the supervisor for the keys. Raises CallError, OSError or ValueError; a retry
    may help.
    """
    host, _, port = str(options.supervisor).rpartition(":")
    metadata = _proof(options.key)
    with socket.create_connection(
        (host.strip("[]"), int(port)), _left_s(deadline_s)
    ) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if options.plain_text:
            scheme, sock = "http", plain
        else:
            scheme, sock = "https", _encrypted(plain, host.strip("[]"), options)
        with sock:
            return keys_in(
                Http2Connection(sock, deadline_s).call(
                    scheme, options.supervisor, REQUEST, metadata
                )
            )


def _encrypted(
    plain: socket.socket, host: str, options: argparse.Namespace
) -> ssl.SSLSocket:
    """Start TLS. Verifies the certificate by --ca or the system's authorities, but not
    with --tls-insecure.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if options.tls_insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif options.ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(options.ca)
    return context.wrap_socket(plain, server_hostname=host)


def _proof(file: Path | None) -> Sequence[tuple[str, str]]:
    """Return the metadata with the proof; none without a key file. Raises ValueError
    when the key is unusable.
    """
    if file is None:
        return ()
    key = _read_key(file)
    node = socket.gethostname()
    time_ms = str(time.time_ns() // 1_000_000)
    lines = (
        "supervisor callback, form 1",
        METHOD,
        node,
        time_ms,
        hashlib.sha256(REQUEST).hexdigest(),
    )
    seal = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).hexdigest()
    return (
        ("supervisor-node", node),
        ("supervisor-time-ms", time_ms),
        ("supervisor-proof", seal),
    )


def _read_key(file: Path) -> bytes:
    try:
        text, mode = file.read_text(encoding="ascii").strip(), file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file}: found no key ({error}); expected the text of CALLBACK_KEY"
        ) from error
    if mode & stat.S_IRWXO:
        found = f"{file}: found mode {stat.S_IMODE(mode):o}"
        raise ValueError(f"{found}; expected a file that others cannot open (chmod o=)")
    if len(text) < LEAST_KEY_CHARACTERS:
        raise ValueError(
            f"{file}: found {len(text)} characters; expected {LEAST_KEY_CHARACTERS} or more"
        )
    return text.encode("ascii")


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - _now_s()
    if left_s <= 0:
        raise TimeoutError("timed out: see whether the supervisor's gRPC process runs")
    return left_s


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _started_s() -> float:
    """Return when this process started, in seconds since the machine's boot."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Ask for the key and print it; without an answer exit with status 1, and sshd
    accepts no login with this key.
    """
    # a core file would hold the key
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    options = _options()
    if not CUSTOMER.fullmatch(options.user) and options.user not in options.allow:
        return
    deadline_s = max(_started_s() + ANSWERS_WITHIN_S, _now_s() + LEAST_S)
    errors = [f"{options.supervisor} did not answer in time"]
    keys: list[str] = []

    def ask() -> None:
        try:
            keys.append(fetch(options, deadline_s))
        except (CallError, OSError, ValueError) as error:
            errors.append(f"{options.supervisor}: {error}")

    # because a look-up of the host's name has no time-out
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(max(deadline_s - _now_s(), 0.0))
    if not keys:
        print(f"authorized_keys: {errors[-1]}", file=sys.stderr, flush=True)
        os._exit(1)
    sys.stdout.write(keys[0])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="authorized_keys", description="sshd's AuthorizedKeysCommand."
    )
    parser.add_argument("user", help="the user who logs in: sshd's %%u")
    parser.add_argument(
        "--supervisor", required=True, metavar="HOST:PORT", type=_host_and_port
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="USER",
        help="a user besides the customers: the admin user",
    )
    parser.add_argument(
        "--ca", type=Path, help="the supervisor's authorities, instead of the system's"
    )
    parser.add_argument(
        "--tls-insecure",
        action="store_true",
        help="accept any certificate: a machine on the way can then log in with a key of its own",
    )
    parser.add_argument(
        "--key",
        type=Path,
        help="file of the site's CALLBACK_KEY, to prove the call with",
    )
    parser.add_argument(
        "--plain-text", action="store_true", help="without TLS, to this machine only"
    )
    parser.add_argument(
        "--plain-text-beyond-loopback",
        action="store_true",
        help="without TLS, to another machine too: machines on the way can change the key",
    )
    options = parser.parse_args()
    options.plain_text |= options.plain_text_beyond_loopback
    host = options.supervisor.rpartition(":")[0]
    loopback_only = options.plain_text and not options.plain_text_beyond_loopback
    if loopback_only and not LOOPBACK.fullmatch(host):
        parser.error(
            f"--plain-text: found {host!r}; expected this machine, or --plain-text-beyond-loopback"
        )
    return options


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise argparse.ArgumentTypeError(f"found {text!r}; expected host:port")
    return text


if __name__ == "__main__":
    main()
