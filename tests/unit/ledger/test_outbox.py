"""Effects as a worker holds them: what their subject is."""

import pytest

from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.outbox import OpenEffect
from tests.support.ledger import job_id


def test_job_id__effect_of_a_job__is_its_subject() -> None:
    effect = OpenEffect(1, job_id(7), EffectKind.SUBMIT, 1, 0)
    assert effect.job_id == job_id(7)
    assert effect.named == {"job_id": job_id(7)}


@pytest.mark.parametrize("kind", [EffectKind.ACCOUNT, EffectKind.BENCHMARK])
def test_job_id__effect_of_another_subject__is_an_error(kind: EffectKind) -> None:
    effect = OpenEffect(1, "7", kind, 1, 0)
    with pytest.raises(TypeError, match=f"{kind} of 7 is no effect of a job"):
        _ = effect.job_id
    assert effect.named == {"subject": "7"}
