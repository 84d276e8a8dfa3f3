"""The fixture of files whose servers speak TLS: a conftest.py imports it."""

import pytest

from devgrid.tls import Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A new authority with a server's certificate, for all tests of a file."""
    return make_certificates(tmp_path_factory.mktemp("tls"))
