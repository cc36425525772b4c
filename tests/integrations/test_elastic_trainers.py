"""Begun on some ranks and ended on others, in every trainer: each row of the epoch is trained once."""

from collections import Counter
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
for package in ("accelerate", "datasets", "lightning", "torchdata", "transformers"):
    if not find_spec(package):
        pytest.skip(f"{package} is not installed", allow_module_level=True)

from launched import launch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # of the trainers, which are not ours

ROWS = 61
TRAINERS = ("plain", "dispatcher", "accelerate", "in_lightning", "hugging_face")


def run(folder, ranks, mode, *saved_on):
    assert launch("elastic_run.py", folder, mode, *saved_on, ranks=ranks) == 0
    return [torch.load(folder / f"{mode}-{ranks}-{rank}.pt") for rank in range(ranks)]


def rows(found, trainer, ranks, epoch):
    return [row for of_rank in found for batch in of_rank[trainer, ranks][epoch] for row in batch]


def check(first, then, saved_on):
    for trainer in TRAINERS:
        begun = rows(first, trainer, saved_on, 0)
        rest, whole = (rows(then, trainer, saved_on, epoch) for epoch in range(2))
        assert len(begun) == len(set(begun)) > 0, trainer
        assert rest, trainer
        assert set(begun) | set(rest) == set(range(ROWS)), (trainer, "rows that nobody trained")
        again = +(Counter(begun + rest) - Counter(range(ROWS)))
        shares = len(then)  # of a step, all of one size
        if trainer == "hugging_face":  # micro-steps too
            shares = 12 if 12 % (2 * len(then)) else 6
        elif trainer in ("plain", "accelerate"):
            shares *= 4
        assert again.total() == -(ROWS - len(begun)) % shares, (trainer, again)
        assert set(whole) == set(range(ROWS)), (trainer, "the next epoch is whole")
        assert len(whole) - ROWS == -ROWS % shares, trainer
    for of_rank in then:
        said = of_rank["dealt", saved_on]
        if len(then) == saved_on:
            assert "num_workers=1, here it has 2" in said
        else:
            assert f"the state is of {saved_on} ranks and there are {len(then)}" in said
            assert "BalancedBatchSampler" in said
            assert f"--continue PLAN --at-step S --ranks {len(then)}" in said
            refused = of_rank["hugging_face refused", saved_on]
            assert "the checkpoint counts steps with samples_per_step = 12, and here it is 24" in refused


def test_begun_on_two_ranks_and_ended_on_three(tmp_path):
    check(run(tmp_path, 2, "save"), run(tmp_path, 3, "load", 2), 2)


@pytest.mark.nightly
def test_begun_on_any_ranks_and_ended_on_any(tmp_path):
    first = {ranks: run(tmp_path, ranks, "save") for ranks in (1, 2, 3, 4)}
    for ranks in 1, 2, 3, 4:
        then = run(tmp_path, ranks, "load", *first)
        for saved_on, begun in first.items():
            check(begun, then, saved_on)
