"""The fixture of files that receive messages about alarms: a conftest.py imports it."""

from collections.abc import Iterator

import pytest

from tests.support.receivers import WebhookReceiver, webhook_receiver


@pytest.fixture
def webhook() -> Iterator[WebhookReceiver]:
    """An HTTP server that takes what it gets, until a test chooses otherwise."""
    with webhook_receiver() as server:
        yield server
