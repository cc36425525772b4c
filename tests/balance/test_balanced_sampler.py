"""Balanced batches without torch: every epoch complete, alike on all ranks, within its caps, resumed exactly."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import balancer
import solvers
from balancer.compat import BalancedBatchSampler, huggingface
from balancer.compat import sampler as sampler_module
from balancer.problem.shuffle import shuffled

LENGTHS = np.random.default_rng(0).lognormal(5, 1.2, 203).astype(int) + 1


def of_ranks(count, *arguments, epoch=0, lengths=LENGTHS, **options):
    samplers = [BalancedBatchSampler(lengths, 4, count, rank, *arguments, **options) for rank in range(count)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    found = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(batches) for batches in found]
    assert len({len(batches) for batches in found}) == 1
    return found


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3),
    st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["linear", "padded", "quadratic:a=100,b=1"]),
)  # fmt: skip
def test_an_epoch_is_complete(lengths, batch, ranks, accumulation, shuffle, drop, equal, cost):
    options = {"gradient_accumulation_steps": accumulation, "shuffle": shuffle, "drop_last": drop, "cost": cost}
    size = batch * ranks * accumulation
    if drop and len(lengths) < size:
        with pytest.raises(ValueError, match=f"lengths must fill a global batch of {size}"):
            BalancedBatchSampler(lengths, batch, ranks, 0, **options)
        return
    samplers = [BalancedBatchSampler(lengths, batch, ranks, r, equal_counts=equal, **options) for r in range(ranks)]
    found = [list(sampler) for sampler in samplers]
    assert {len(batches) for batches in found} == {len(samplers[0])}
    assert all(batch for batches in found for batch in batches), "a rank must never be without a sample"
    rows = sorted(row for batches in found for batch in batches for row in batch)
    if drop:
        assert len(rows) == len(set(rows)) == len(lengths) // size * size
    else:
        assert set(rows) == set(range(len(lengths)))
        again = -len(lengths) % (ranks * accumulation) if equal else ranks * accumulation
        assert len(rows) <= max(len(lengths) + again, ranks * accumulation)
    if equal:
        full = len(lengths) // size * accumulation
        assert {len(batch) for batches in found for batch in batches[:full]} <= {batch}
        assert all(len({len(batches[step]) for batches in found}) == 1 for step in range(len(samplers[0])))
    assert [list(sampler) for sampler in samplers] == found, "an epoch that is not changed comes again"


def test_every_epoch_has_its_own_order_and_is_balanced():
    lengths = np.random.default_rng(1).integers(1, 1000, 203)
    epochs = [of_ranks(4, epoch=epoch, lengths=lengths) for epoch in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    for found in epochs:
        loads = np.array([[lengths[batch].sum() for batch in batches] for batches in found])
        assert np.median(loads.max(axis=0) / loads.mean(axis=0)) < 1.03
    as_they_come = lengths[: 203 // 16 * 16].reshape(-1, 4, 4).sum(axis=2)
    assert np.median(as_they_come.max(axis=1) / as_they_come.mean(axis=1)) > 1.2


def test_without_shuffling_a_step_holds_the_next_rows():
    found = of_ranks(2, shuffle=False)
    assert [sorted(row for batch in step for row in batch) for step in zip(*found, strict=True)][:3] == [
        list(range(first, first + 8)) for first in (0, 8, 16)
    ]


def test_unequal_counts_follow_padded_costs():
    lengths = [100] * 4 + [10] * 60
    found = of_ranks(4, lengths=lengths, cost="padded", equal_counts=False, gradient_accumulation_steps=4)
    sizes = {len(batch) for batches in found for batch in batches}
    assert min(sizes) < 4 < max(sizes)


def test_caps_are_kept_or_named():
    images = np.arange(203) % 5
    arguments = {"micro_batch_tokens": 3_000, "caps": {"images": (images, 12)}, "gradient_accumulation_steps": 2}
    for batches in of_ranks(2, lengths=np.minimum(LENGTHS, 900), **arguments):
        assert max(np.minimum(LENGTHS, 900)[batch].sum() for batch in batches) <= 3_000
        assert max(images[batch].sum() for batch in batches) <= 12
    sampler = BalancedBatchSampler([5, 5, 50, 5], 2, 2, 0, shuffle=False, micro_batch_tokens=40)
    with pytest.raises(solvers.InfeasibleError, match=r"epoch 0, step 0: .*row 2.*50"):
        list(sampler)


@pytest.mark.parametrize(("accumulation", "done"), [(1, 0), (1, 1), (1, 4), (1, 13), (3, 0), (3, 3), (3, 12)])
def test_a_resumed_run_goes_on_behind_the_last_batch(accumulation, done):
    def made():
        return BalancedBatchSampler(LENGTHS, 4, 2, 1, gradient_accumulation_steps=accumulation)

    first = made()
    first.set_epoch(2)
    whole = list(first)
    running = iter(first)
    for _ in range(done):
        next(running)
    state = json.loads(json.dumps(first.state_dict()))
    resumed = made()
    resumed.load_state_dict(state)
    iter(resumed)  # loaders make iterators that they never use
    resumed.set_epoch(2)  # as a trainer's loop does
    assert resumed.state_dict() == state
    assert list(resumed) == whole[done:]
    assert list(resumed) == whole, "only the first iteration begins in the middle"
    other = made()
    other.set_epoch(2)
    resumed.load_state_dict(other.state_dict(batches=3))
    assert list(resumed) == whole[3:]
    resumed.load_state_dict(state)
    resumed.set_epoch(3)
    first.set_epoch(3)
    assert list(resumed) == list(first), "another epoch begins at its beginning"


def test_a_state_of_other_data_or_another_order_is_refused():
    state = BalancedBatchSampler(LENGTHS, 4, 2, 1).state_dict()
    for name, other in {
        "lengths": BalancedBatchSampler(LENGTHS + 1, 4, 2, 1),
        "seed": BalancedBatchSampler(LENGTHS, 4, 2, 1, seed=1),
    }.items():
        with pytest.raises(ValueError, match=f"the state is of other batches: its {name} is"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"what state_dict\(\) returned.*it has no version"):
        other.load_state_dict({"epoch": 3})
    old = {"epoch": 0, "batches": 3, "of": {"num_replicas": 2}}
    with pytest.raises(ValueError, match=r"of version 1, which counts batches.*begin a new epoch"):
        other.load_state_dict(old)


def test_all_ranks_in_turn_are_what_each_gets():
    found = of_ranks(3, gradient_accumulation_steps=2)
    together = BalancedBatchSampler(LENGTHS, 4, 3, None, gradient_accumulation_steps=2)
    everything = list(together)
    assert len(everything) == len(together)
    assert [everything[rank::3] for rank in range(3)] == found


def test_batches_of_a_rank_are_not_dealt_out_again():
    sampler = BalancedBatchSampler(LENGTHS, 4, 2, 1)
    with pytest.raises(
        ValueError, match=r"rank 1's already.*use_distributed_sampler=False.*accelerator.prepare.*rank=None"
    ):
        sampler.batch_size  # noqa: B018 (reading it is what deals out)
    assert not hasattr(BalancedBatchSampler(LENGTHS, 4, 2, None), "batch_size")  # so Accelerate refuses to split them


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([], 2, 2, 0), "lengths must hold at least one sample"),
        (([3, -1], 2, 2, 0), r"lengths\[1\] must be >= 0, got -1"),
        (([3], 0, 2, 0), "batch_size must be >= 1"),
        (([3], 1, 2, 2), r"rank must be within 0\.\.1, got 2"),
        (([3], 1, 0, 0), "num_replicas must be >= 1"),
    ],
)
def test_errors_name_what_is_wrong(arguments, said):
    with pytest.raises(ValueError, match=said):
        BalancedBatchSampler(*arguments)
    with pytest.raises(ValueError, match="one value for each of 1 samples"):
        BalancedBatchSampler([3], 1, 1, 0, caps={"images": ([1, 2], 9)})
    with pytest.raises(ValueError, match="gradient_accumulation_steps must be >= 1"):
        BalancedBatchSampler([3], 1, 1, 0, gradient_accumulation_steps=0)


@pytest.mark.parametrize("count", [100, 300])
def test_lengths_of_another_dataset_are_refused(count):
    """Fewer rows than there are would leave some out in silence; more end in an IndexError of some worker."""
    with pytest.raises(
        ValueError, match=f"lengths must have one for each of the 203 samples of the dataset, got {count}"
    ):
        BalancedBatchSampler([3] * count, 2, 2, 0, dataset=range(203))
    assert len(BalancedBatchSampler([3] * 203, 2, 2, 0, dataset=range(203))) == 51


def trainer_like(world_size=2, counted=True, averaged=True, dataset=(1, 2), **sizes):
    """What the Hugging Face mixin looks at."""
    return SimpleNamespace(
        args=SimpleNamespace(world_size=world_size, average_tokens_across_devices=averaged), compute_loss_func=None,
        model_accepts_loss_kwargs=counted, train_dataset=dataset,
        accelerator=SimpleNamespace(parallelism_config=SimpleNamespace(**sizes)),
    )  # fmt: skip


def test_losses_that_would_change_are_refused():
    equal, unequal = (BalancedBatchSampler([1, 2, 3], 1, 2, 0, equal_counts=given) for given in (True, False))
    for trainer, sampler in (trainer_like(), unequal), (trainer_like(counted=False), equal):
        huggingface._check_loss(trainer, sampler.equal_counts)
    huggingface._check_loss(trainer_like(1, counted=False), unequal.equal_counts)
    with pytest.raises(ValueError, match=r"takes no num_items_in_batch.*give balance = dict\(..., equal_counts=True\)"):
        huggingface._check_loss(trainer_like(counted=False), unequal.equal_counts)
    with pytest.raises(ValueError, match="average_tokens_across_devices must be True"):
        huggingface._check_loss(trainer_like(averaged=False), equal.equal_counts)


def test_datasets_and_ranks_that_cannot_be_balanced_are_refused():
    huggingface._check(trainer_like(tp_size=1, cp_size=None))
    with pytest.raises(ValueError, match="cp_size of parallelism_config must be 1"):
        huggingface._check(trainer_like(cp_size=2))
    for dataset in (None, iter([1])):
        with pytest.raises(ValueError, match=r"train_dataset must have a length.*PrefetchDispatcher"):
            huggingface._check(trainer_like(dataset=dataset))


def test_it_needs_no_torch():
    import subprocess
    import sys

    code = (
        "import sys, balancer.compat as c; list(c.BalancedBatchSampler([3, 4], 1, 1, 0)); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    assert balancer.__version__


def test_rows_found_by_the_block_are_those_of_the_whole_order(monkeypatch):
    """Steps of ten that begin in one block and end in the next; the last takes rows of the first again."""
    monkeypatch.setattr(sampler_module, "_BLOCK", 7)
    sampler_module._shuffled.cache_clear()
    made = BalancedBatchSampler(np.arange(1, 38), 5, 2, 0, seed=3)
    drawn = [row for step in range(made.num_steps) for batch in made.plan_step(step, epoch=2)[0] for row in batch]
    whole = shuffled(np.arange(37), 37, 3, 2).tolist()
    for first in range(0, 30, 10):
        assert sorted(drawn[first : first + 10]) == sorted(whole[first : first + 10])
    assert sorted(drawn[30:]) == sorted(whole[30:] + whole[:1])
    sampler_module._shuffled.cache_clear()
