"""The server's certificate: which files are refused, and when a new one is taken."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

from devgrid.tls import Certificates, make_certificates
from grpc_callbacks.tls import Certificate, credentials, is_for, names_of
from supervisor_tasks.config.settings import SettingsError, load


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "tls")


def certificate(
    key: Path | None, cert: Path | None, address: str = "localhost:3000"
) -> Certificate:
    environment = {"TLS_ENABLE": "true", "PUBLIC_ADDRESS": address}
    for name, file in (("TLS_KEY", key), ("TLS_CERT", cert)):
        if file is not None:
            environment[name] = str(file)
    return Certificate(load(environment=environment))


def encrypted(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    file = folder / "encrypted.key"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    return file


def refused(key: Path | None, cert: Path | None) -> list[tuple[str, str]]:
    """The settings that are refused, each with the words after `expected`."""
    with pytest.raises(SettingsError) as error:
        certificate(key, cert)
    lines = str(error.value).splitlines()
    return [(line.partition(":")[0], line.rpartition("expected ")[2]) for line in lines]


def test_certificate__files_are_not_set__a_line_each() -> None:
    nothing = "a PEM file, because TLS_ENABLE is true"
    assert refused(None, None) == [("TLS_KEY", nothing), ("TLS_CERT", nothing)]


def test_certificate__file_is_not_there__is_named(certificates: Certificates) -> None:
    ((name, expected),) = refused(
        certificates.key, certificates.cert.with_name("none.pem")
    )
    assert name == "TLS_CERT"
    assert expected.startswith("a file that can be read")


def test_certificate__no_pem_in_both__a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("no PEM")
    assert refused(file, file) == [
        ("TLS_KEY", "a private key as PEM, without a passphrase"),
        ("TLS_CERT", "certificates as PEM, the server's own first"),
    ]


def test_certificate__key_with_a_passphrase__is_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    assert [name for name, _ in refused(encrypted(tmp_path), certificates.cert)] == [
        "TLS_KEY"
    ]


def test_certificate__of_another_key__is_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    others = make_certificates(tmp_path / "others")
    assert refused(certificates.key, others.cert) == [
        ("TLS_CERT", "the certificate of the key in TLS_KEY, before all others")
    ]


@pytest.mark.parametrize(
    ("address", "warned"),
    [
        ("localhost:3000", []),
        ("127.0.0.1:3000", []),
        ("grid.example:3000", ["certificate_of_another_host"]),
    ],
)
def test_certificate__public_address__is_compared_with_its_names(
    certificates: Certificates, address: str, warned: list[str]
) -> None:
    with capture_logs() as lines:
        certificate(certificates.key, certificates.cert, address)
    assert [line["event"] for line in lines] == warned


def test_changed__same_files__nothing_is_taken(certificates: Certificates) -> None:
    assert certificate(certificates.key, certificates.cert)._changed() is None


def test_changed__new_files__are_taken_once(
    certificates: Certificates, tmp_path: Path
) -> None:
    held = certificate(certificates.key, certificates.cert)
    others = make_certificates(tmp_path / "others")
    os.replace(others.key, certificates.key)  # noqa: PTH105  as a site's program renews them
    with capture_logs() as lines:
        assert held._changed() is None, "the key alone does not fit"
        os.replace(others.cert, certificates.cert)  # noqa: PTH105
        assert held._changed() is not None
        assert held._changed() is None
    assert [line["event"] for line in lines] == [
        "certificate_rejected",
        "certificate_loaded",
    ]


@contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    """Let each opening of a file fail, also for root, whom no file's mode stops. The
    stamps of the files stay the same.
    """
    bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, bounds[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, bounds)


def test_changed__first_read_of_new_files_fails__a_later_one_takes_them(
    certificates: Certificates, tmp_path: Path
) -> None:
    held = certificate(certificates.key, certificates.cert)
    others = make_certificates(tmp_path / "others")
    others.key.replace(certificates.key)
    others.cert.replace(certificates.cert)
    with capture_logs() as lines:
        with no_file_can_be_opened():
            assert held._changed() is None
            assert held._changed() is None
        assert held._changed() is not None
        assert held._changed() is None
    assert [line["event"] for line in lines] == [
        "certificate_rejected",
        "certificate_loaded",
    ]


def test_changed__only_the_time_of_the_change_differs__new_files_are_taken(
    certificates: Certificates, tmp_path: Path
) -> None:
    others = make_certificates(tmp_path / "others")
    for pair in ((certificates.key, others.key), (certificates.cert, others.cert)):
        pems = [file.read_bytes() for file in pair]
        for file, pem in zip(pair, pems, strict=True):
            file.write_bytes(pem.ljust(max(map(len, pems)), b"\n"))
    held = certificate(certificates.key, certificates.cert)
    for old, new in ((certificates.key, others.key), (certificates.cert, others.cert)):
        found = old.stat()
        old.write_bytes(new.read_bytes())
        os.utime(old, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert held._changed() is not None


def test_changed__files_are_gone__the_one_before_stays(
    certificates: Certificates,
) -> None:
    held = certificate(certificates.key, certificates.cert)
    certificates.cert.unlink()
    with capture_logs() as lines:
        assert held._changed() is None
        assert held._changed() is None
    assert [line["event"] for line in lines] == ["certificate_rejected"]


def test_credentials__tls_is_off__are_none() -> None:
    assert credentials(load(environment={"TLS_ENABLE": "false"})) is None


def test_names_of__no_certificate__has_none(certificates: Certificates) -> None:
    assert names_of(b"no PEM") == []
    assert names_of(certificates.ca.read_bytes()) == []
    assert "localhost" in names_of(certificates.cert.read_bytes())


@pytest.mark.parametrize(
    ("host", "names", "right"),
    [
        ("a.example.org", ["a.example.org"], True),
        ("A.Example.org.", ["a.example.ORG"], True),
        ("a.example.org", ["*.example.org"], True),
        ("a.b.example.org", ["*.example.org"], False),
        ("10.0.0.1", ["10.0.0.1"], True),
        ("10.0.0.1", ["*.0.0.1"], False),
        ("[::1]", ["::1"], True),
        ("a.example.org", [], False),
    ],
)
def test_is_for__host_and_certificate_names__matches_any_case_and_one_wildcard_label(
    host: str, names: list[str], right: bool
) -> None:
    assert is_for(host, names) is right
