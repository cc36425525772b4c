"""A plain loop, with DataLoader workers and torchdata's StatefulDataLoader: the training it was, killed and resumed."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchdata")

import plain_cases as cases
import tiny
from rank_processes import Ranks
from ranks_of import ranks_of

ranks = ranks_of(4)


@pytest.mark.parametrize(("kind", "workers", "epochs"), [("stateful", 1, 1), ("torch", 2, 1), ("torch", 0, 2)])
def test_training_is_the_same_and_resumes_bit_for_bit(kind, workers, epochs, tmp_path):
    with Ranks(2) as two:
        wanted = two.run(cases.unbalanced, epochs)
        whole = two.run(cases.trains_plain, kind, workers, epochs)
        two.start(cases.trains_plain, kind, workers, epochs, str(tmp_path), 7)
        assert two.collect() == [None, None]  # killed
    for found, usual in zip(whole, wanted, strict=True):
        assert len(found[0]) == tiny.STEPS
        tiny.assert_same_training(found, usual)
    with Ranks(2) as two:
        resumed = two.run(cases.trains_plain, kind, workers, epochs, str(tmp_path))
    for (losses, weights), found in zip(resumed, whole, strict=True):
        tiny.assert_equal((found[0][: tiny.STEPS // 2] + losses, weights), found)


def test_a_loader_that_deals_nothing_out_is_warned_of(ranks):
    first, *others = ranks.run(cases.deals_nothing_out)
    assert not any(others)
    assert ["all 4 ranks drew the same mini-batch in the first step" in text for text in first] == [True]
    assert "DistributedSampler" in first[0]


def test_the_three_lines_run():
    with Ranks(8) as eight:  # of a node, as the page says
        gradients = eight.run(cases.runs_three_lines)
    assert all(of_rank == gradients[0] for of_rank in gradients)


def test_peers_of_a_megatron_style_loop_get_the_same(ranks):
    steps = ranks.run(cases.runs_megatron)
    assert steps[0] == steps[1]
    assert steps[2] == steps[3]
    found = [ids for of_rank in (steps[0], steps[2]) for step in of_rank[0] for ids in step]
    assert sorted(found) == sorted(steps[0][1])


def test_training_on_samples_that_ranks_share_is_the_same(ranks):
    wanted = ranks.run(cases.unbalanced, 1, False)
    results = ranks.run(cases.shares_long_samples)
    for (found, degrees), usual in zip(results, wanted, strict=True):
        assert len(found[0]) == tiny.STEPS
        tiny.assert_same_training(found, usual)
        assert {1, 2} <= set(degrees)
