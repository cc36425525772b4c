"""A plain loop, with DataLoader workers and torchdata's StatefulDataLoader: the training it was, killed and resumed."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchdata")

import plain_cases as cases
import tiny
from rank_processes import Ranks


@pytest.mark.parametrize(("kind", "workers", "epochs"), [("torch", 2, 1), ("stateful", 2, 1), ("torch", 0, 2)])
def test_training_is_the_same_and_resumes_bit_for_bit(kind, workers, epochs, tmp_path):
    with Ranks(2) as ranks:
        wanted = ranks.run(cases.unbalanced, epochs)
        whole = ranks.run(cases.trains_plain, kind, workers, epochs)
        ranks.start(cases.trains_plain, kind, workers, epochs, str(tmp_path), 7)
        assert ranks.collect() == [None, None]  # killed
    for found, usual in zip(whole, wanted, strict=True):
        assert len(found[0]) == tiny.STEPS
        tiny.assert_same_training(found, usual)
    with Ranks(2) as ranks:
        resumed = ranks.run(cases.trains_plain, kind, workers, epochs, str(tmp_path))
    for (losses, weights), found in zip(resumed, whole, strict=True):
        tiny.assert_equal((found[0][: tiny.STEPS // 2] + losses, weights), found)
