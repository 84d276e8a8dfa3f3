"""The purposes of transactions, as the ledger and Prometheus have them."""

import pytest

from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger.transaction_names import Purpose, report_purpose


@pytest.mark.parametrize(
    ("status", "purpose"),
    [
        (ChainStatus.RUNNING, "report RUNNING"),
        (ChainStatus.FINISHED, "report FINISHED"),
        (ChainStatus.OUT_OF_CREDITS, "report OUT_OF_CREDITS"),
    ],
)
def test_report_purpose__each_status__is_stored_by_its_name(
    status: ChainStatus, purpose: str
) -> None:
    """A ledger has rows with these texts: another text would hide them."""
    assert report_purpose(status) == purpose


def test_report_purpose__all_statuses__differ_from_each_other_and_from_purposes() -> (
    None
):
    reports = {report_purpose(status) for status in ChainStatus}
    assert len(reports) == len(ChainStatus)
    assert reports & {purpose.value for purpose in Purpose} == set()
