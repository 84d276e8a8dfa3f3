"""Probes of the grid's services, the directory, certificates, our own gRPC process and
Flower.
"""

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import requests.utils
import urllib3
from cryptography import x509
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

import supervisor_tasks.site_services.directory  # noqa: F401  before the probes' threads import it
from protos.sbatchapi.v1alpha1.sbatch_pb2 import ChallengeRequest
from protos.sbatchapi.v1alpha1.sbatch_pb2_grpc import AuthAPIStub
from supervisor_tasks.bootstrap import channels_of, directory_of
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.doctor.check_results import (
    Finding,
    NotTriedError,
    green,
    red,
    skipped,
    yellow,
)
from supervisor_tasks.doctor.probe_context import (
    CONNECT_S,
    PROXIED,
    ProbeContext,
    is_proxied,
)
from supervisor_tasks.doctor.probe_runner import Probe, error_line
from supervisor_tasks.doctor.verdicts import CertificateSeen, certificate_verdict
from supervisor_tasks.grid.grpc_channels import Channels

AUTHORITIES_OF_REQUESTS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
UNREACHABLE = "start the service, or correct its address: no certificate was seen"
HEALTH = "/grpc.health.v1.Health/Check"
REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
FLOWER = "start Flower, or correct FLOWER_URL"
DEFINITIONS = "correct SBATCH_ENDPOINT, SBATCH_TLS_ENABLE and SBATCH_CA; ask the grid whether its service runs"
CALLBACKS = (
    "start the gRPC process, and see that PUBLIC_ADDRESS leads to its LISTEN_ADDRESS"
)
DIRECTORY = "start the directory, or correct LDAP_URL, LDAP_BIND_DN, LDAP_BIND_PASSWORD and LDAP_CA_PATH"


def job_definitions(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the job definition service answers with a challenge."""
    with channels_of(shared.settings).open(shared.settings.sbatch_endpoint) as channel:
        AuthAPIStub(channel).Challenge(ChallengeRequest(), timeout=CONNECT_S)
    yield green("job definition service", f"{shared.settings.sbatch_endpoint} answers")


def callbacks(shared: ProbeContext) -> Iterator[Finding]:
    """Whether our gRPC process serves at PUBLIC_ADDRESS."""
    settings = shared.settings
    with Channels(settings.tls_enable, verified=False).open(
        settings.public_address
    ) as channel:
        check = channel.unary_unary(
            HEALTH, HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )  # types-grpcio-health-checking has no type for the stub
        try:
            check(HealthCheckRequest(), timeout=CONNECT_S)
        except grpc.RpcError as error:
            # CALLBACK_PROOF and CALLBACK_NETWORKS: only our own process refuses by these
            if error.code() not in REFUSALS:
                raise
            found = f"{settings.public_address} answers, and refuses a caller from here without a proof"
        else:
            found = f"{settings.public_address} answers"
    yield green("callbacks", found)


def directory(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the directory takes our login."""
    if shared.settings.ldap_url is None:
        raise NotTriedError("LDAP_URL is not set: the site makes the accounts itself")
    if shared.settings.ldap_bind_password is None:
        raise NotTriedError(
            "LDAP_BIND_PASSWORD is not set here: run it where the chain worker runs"
        )
    opened = directory_of(shared.settings)
    assert opened is not None  # noqa: S101  LDAP_URL is set
    with opened.open():
        yield green("LDAP", f"{opened.url} takes {opened.bind_dn}")


def flower(shared: ProbeContext) -> Iterator[Finding]:
    """Whether Flower answers. Without it, the fleet works on."""
    url = shared.settings.flower_url
    try:
        with urllib3.PoolManager(retries=False, timeout=CONNECT_S) as pool:
            status = pool.request("GET", f"{url.rstrip('/')}/healthcheck").status
    except urllib3.exceptions.HTTPError as error:
        yield yellow("Flower", f"{url}: {error_line(error)}", FLOWER)
        return
    if status == 200:
        yield green("Flower", f"{url} answers")
    else:
        yield yellow("Flower", f"{url} answers with status {status}", FLOWER)


# --- certificates ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Secured:
    """A service that must show a certificate: its address, the certificate's authority
    (None: the machine's), whether the fleet verifies it, and whether the fleet may reach
    it through a proxy.
    """

    host: str
    port: int
    authority: Path | None = None
    verified: bool = True
    may_be_proxied: bool = False


def _of_definitions(settings: Settings) -> list[Secured]:
    if not settings.sbatch_tls_enable:
        return []
    host, _, port = settings.sbatch_endpoint.rpartition(":")
    return [
        Secured(
            host.strip("[]"),
            int(port),
            settings.sbatch_ca or _grpc_authorities(),
            not settings.sbatch_tls_insecure,
            may_be_proxied=True,
        )
    ]


def _of_callbacks(settings: Settings) -> list[Secured]:
    if not settings.tls_enable:
        return []
    host, _, port = settings.public_address.rpartition(":")
    # plugins do not verify it
    return [Secured(host.strip("[]"), int(port), verified=False)]


def _of_directory(settings: Settings) -> list[Secured]:
    if settings.ldap_url is None:
        return []
    return _of_url(
        settings.ldap_url,
        "ldaps",
        636,
        settings.ldap_ca_path,
        not settings.ldap_insecure,
    )


def _of_broker(settings: Settings) -> list[Secured]:
    if settings.broker_url is None:
        return []
    url = settings.broker_url.get_secret_value()
    return _of_url(url, "rediss", 6379, settings.broker_ca, True)


def _of_chain(settings: Settings) -> list[Secured]:
    services = list[Secured]()
    for url in settings.rpc_urls:
        services += _of_url(url, "https", 443, _requests_authorities(), True)
    services += _of_url(settings.ws_url or "", "wss", 443, None, True)
    return [replace(service, may_be_proxied=True) for service in services]


def _grpc_authorities() -> Path:
    """The authorities that gRPC trusts by default: those of the variable, or its
    own.
    """
    given = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    own = Path(grpc.__file__).parent / "_cython" / "_credentials" / "roots.pem"
    return Path(given or own)


def _requests_authorities() -> Path:
    """The authorities that requests trusts by default, a file or a folder: those of
    the first variable that is set, or those that requests comes with.
    """
    given = filter(None, map(os.environ.get, AUTHORITIES_OF_REQUESTS))
    return Path(next(given, requests.utils.DEFAULT_CA_BUNDLE_PATH))


def _of_url(
    url: str, scheme: str, default_port: int, authority: Path | None, verified: bool
) -> list[Secured]:
    parts = urlsplit(url)
    if parts.scheme != scheme or parts.hostname is None:
        return []
    return [Secured(parts.hostname, parts.port or default_port, authority, verified)]


def certificate(
    name: str, of: Callable[[Settings], list[Secured]], mend: str, shared: ProbeContext
) -> Iterator[Finding]:
    """Whether a client accepts the certificates of a service, and for how many days
    they are valid.
    """
    services = of(shared.settings)
    if not services:
        raise NotTriedError("this connection does not use TLS")
    for service in services:
        thing = name
        if len(services) > 1:
            thing = f"{name} {service.host}"
        if service.may_be_proxied and is_proxied(service.host):
            yield skipped(f"TLS of {thing}", PROXIED)
            continue
        try:
            yield certificate_verdict(thing, _seen(service), datetime.now(UTC), mend)
        except ssl.SSLError as error:
            yield red(f"TLS of {thing}", error_line(error), mend)
        except OSError as error:
            yield red(f"TLS of {thing}", error_line(error), UNREACHABLE)


def _seen(service: Secured) -> CertificateSeen:
    shown = x509.load_der_x509_certificate(
        _handshake(service, _context(None, verified=False))
    )
    try:
        alternatives = shown.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
        names = [str(name.value) for name in alternatives]
    except x509.ExtensionNotFound:
        names = [shown.subject.rfc4514_string()]
    distrust = ""
    if service.verified:
        try:
            _handshake(service, _context(service.authority, verified=True))
        except ssl.SSLCertVerificationError as error:
            distrust = error.verify_message or error_line(error)
    return CertificateSeen(shown.not_valid_after_utc, names, distrust)


def _context(authority: Path | None, *, verified: bool) -> ssl.SSLContext:
    file, folder = authority, None
    if authority is not None and authority.is_dir():
        file, folder = None, authority
    context = ssl.create_default_context(cafile=file, capath=folder)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if not verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _handshake(service: Secured, context: ssl.SSLContext) -> bytes:
    """Return the certificate that the service shows (DER). Raises OSError."""
    with (
        socket.create_connection((service.host, service.port), CONNECT_S) as plain,
        context.wrap_socket(plain, server_hostname=service.host) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def _certificate(
    name: str, of: Callable[[Settings], list[Secured]], mend: str
) -> Probe[ProbeContext]:
    return Probe(f"TLS of {name}", partial(certificate, name, of, mend), UNREACHABLE)


SETTINGS = (
    Probe("job definition service", job_definitions, DEFINITIONS),
    Probe("LDAP", directory, DIRECTORY),
    _certificate(
        "the RPC endpoints", _of_chain, "ask the endpoint's operator to renew it"
    ),
    _certificate(
        "the job definition service",
        _of_definitions,
        "renew it, or correct SBATCH_ENDPOINT and SBATCH_CA",
    ),
    _certificate(
        "the directory", _of_directory, "renew it, or correct LDAP_URL and LDAP_CA_PATH"
    ),
    _certificate(
        "the broker", _of_broker, "renew it, or correct BROKER_URL and BROKER_CA"
    ),
)
CALLBACKS_SERVED = (
    Probe("callbacks", callbacks, CALLBACKS),
    _certificate("the callbacks", _of_callbacks, "renew TLS_CERT and TLS_KEY"),
)
FLEET = (
    *CALLBACKS_SERVED,
    Probe("Flower", flower, FLOWER, failed=yellow),
)
