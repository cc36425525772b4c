"""FSDP2 with micro-batches, a step with too few samples included: the training it was, killed and resumed."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchdata")

import plain_cases as cases
import tiny
from rank_processes import Ranks


def test_training_is_the_same_and_resumes_bit_for_bit(tmp_path):
    with Ranks(2) as ranks:
        wanted = ranks.run(cases.unbalanced_few)
        whole = ranks.run(cases.trains_fsdp)
        ranks.start(cases.trains_fsdp, str(tmp_path), 7)
        assert ranks.collect() == [None] * 2  # killed
    for (found, _, _), usual in zip(whole, wanted, strict=True):
        assert len(found[0]) == tiny.STEPS
        tiny.assert_same_training(found, usual)
    assert len({tuple(slots) for _, slots, _ in whole}) == 1  # as many micro-batches on every rank
    assert max(whole[0][1]) > 1
    assert sum(empty for _, _, empty in whole) == 1  # in the last step, of one sample
    with Ranks(2) as ranks:
        resumed = ranks.run(cases.trains_fsdp, str(tmp_path))
    for ((losses, weights), _, _), (found, _, _) in zip(resumed, whole, strict=True):
        tiny.assert_equal((found[0][: tiny.STEPS // 2] + losses, weights), found)
