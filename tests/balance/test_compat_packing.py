"""Grids of micro-batches, and Megatron-core's packing scheduler: shape, invariants, and place in Megatron."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import balancer
import solvers
from balancer.compat.grid import micro_batch_grid
from balancer.compat.megatron import BalancedPackingScheduler

lengths = st.lists(st.integers(1, 64), min_size=8, max_size=60)


@given(lengths, st.integers(1, 4), st.integers(1, 2))
@settings(max_examples=examples(25))
def test_a_grid_holds_every_sample_once_under_its_cap(values, ranks, multiple):
    grid = micro_batch_grid(values, ranks, 64, multiple_of=multiple)
    assert all(len(slot) == ranks for slot in grid)
    assert len(grid) % multiple == 0
    cells = [cell for slot in grid for cell in slot]
    assert all(cell == sorted(cell) and len(cell) > 0 for cell in cells)
    assert sorted(sample for cell in cells for sample in cell) == list(range(len(values)))
    assert max(sum(values[sample] for sample in cell) for cell in cells) <= 64


def test_a_grid_of_so_many_micro_batches_under_other_constraints():
    values = np.random.default_rng(0).integers(1, 100, 48).tolist()
    grid = micro_batch_grid(values, 4, 2_000, micro_batches=3, caps={"images": ([1] * 48, 13)})
    assert len(grid) == 3
    assert all(sum(len(slot[rank]) for slot in grid) <= 13 for rank in range(4))
    few = micro_batch_grid(values, 4, 2_000, limits=[balancer.CountLimit(3)])
    assert max(len(cell) for slot in few for cell in slot) == 3
    with pytest.raises(solvers.InfeasibleError):
        micro_batch_grid([101], 1, 100)
    assert micro_batch_grid([101, 5], 1, 100, over_long="own") == [[[0]], [[1]]]


@given(lengths, st.integers(1, 3), st.integers(1, 3), st.sampled_from([None, 2]))
@settings(max_examples=examples(25))
def test_a_scheduler_packs_for_ranks_of_context_parallel_groups(values, cp, dp, group):
    scheduler = BalancedPackingScheduler(64, cp, dp, group)
    ids = [1000 + index for index in range(len(values))]
    groups = scheduler.get_groups_and_subsamples(list(zip(ids, values, strict=True)))
    assert len(groups) % (group or 1) == 0
    seen = []
    for micro_batch in groups:
        assert len(micro_batch) == cp * dp
        for first in range(0, cp * dp, cp):
            assert all(micro_batch[first + other] == micro_batch[first] for other in range(cp))
            seen.extend(micro_batch[first])
            assert 0 < sum(values[index - 1000] for index in micro_batch[first]) <= 64 * cp
    assert sorted(seen) == ids, "an id on more ranks than those that share its pack"
    assert all(type(index) is int for index in seen)


@given(
    st.lists(st.integers(1, 64) | st.integers(60, 128), min_size=4, max_size=40),
    st.sampled_from([(1, 2), (2, 2), (1, 6), (2, 4), (3, 1)]), st.sampled_from([1, 2]), st.sampled_from([None, 2, 4]),
)  # fmt: skip
@settings(max_examples=examples(40))
def test_a_scheduler_divides_the_ranks_anew_in_each_micro_batch(values, sizes, least, group):
    cp, dp = sizes
    ranks, cap = cp * dp, 64
    scheduler = BalancedPackingScheduler(cap, cp, dp, group, min_cp_size=least)
    ids = [1000 + index for index in range(len(values))]
    groups = scheduler.get_groups_and_subsamples(list(zip(ids, values, strict=True)))
    assert len(groups) % (group or 1) == 0
    seen = []
    for micro_batch in groups:
        assert len(micro_batch) == ranks
        first = 0
        while first < ranks:
            pack = micro_batch[first]
            degree = micro_batch.count(pack)
            assert micro_batch[first : first + degree] == [pack] * degree
            assert degree == ranks or (degree & (degree - 1) == 0 and degree >= least and first % degree == 0)
            assert 0 < sum(values[index - 1000] for index in pack) <= degree * cap
            seen.extend(pack)
            first += degree
    assert sorted(seen) == ids, "an id in several packs, or in none"


def test_long_samples_get_more_ranks_than_short_ones_and_every_rank_some():
    scheduler = BalancedPackingScheduler(2048, 2, 2, min_cp_size=1)
    lengths = [1024, 4096, 2048, 1024, 2048, 1024, 2048, 1024]
    groups = scheduler.get_groups_and_subsamples(list(enumerate(lengths)))
    work = [max(sum(lengths[i] ** 2 for i in ids) / slot.count(ids) for ids in slot) for slot in groups]
    assert sum(work) <= 10.5e6, "what Megatron's own takes, by its own measure of work"
    lone = BalancedPackingScheduler(64, 1, 4, min_cp_size=1)
    assert lone.get_groups_and_subsamples([(7, 3)]) == [[[7]] * 4]
    assert lone.get_groups_and_subsamples([(7, 256), (8, 1)]) in ([[[7]] * 4, [[8]] * 4], [[[8]] * 4, [[7]] * 4])


def test_a_scheduler_takes_what_megatron_hands_in_and_refuses_what_it_cannot_keep():
    names = ["max_seqlen_per_dp_cp_rank", "cp_size", "dp_size", "microbatch_group_size_per_vp_stage", "max_num_seqs"]
    assert list(inspect.signature(BalancedPackingScheduler).parameters) == [*names, "min_cp_size"]
    assert not BalancedPackingScheduler(8, 1, 2).is_dynamic_cp
    with pytest.raises(ValueError, match="max_num_seqs must be None, got 4"):
        BalancedPackingScheduler(8, 1, 2, None, 4)
    assert BalancedPackingScheduler(8, 1, 2, min_cp_size=1).is_dynamic_cp
    for least in (3, 8):
        with pytest.raises(
            ValueError, match=f"min_cp_size must be a power of two up to 4, or all 4 ranks, got {least}"
        ):
            BalancedPackingScheduler(8, 2, 2, None, min_cp_size=least)
    with pytest.raises(solvers.InfeasibleError, match="no sequence group can hold sample 0"):
        BalancedPackingScheduler(8, 2, 2, min_cp_size=1).get_groups_and_subsamples([(0, 33)])
    with pytest.raises(solvers.InfeasibleError, match="1 samples are too few for 2 micro-batches"):
        BalancedPackingScheduler(8, 2, 2, 2, min_cp_size=1).get_groups_and_subsamples([(0, 9)])
    with pytest.raises(solvers.InfeasibleError, match="17"):
        BalancedPackingScheduler(8, 2, 2).get_groups_and_subsamples([(0, 17)])


def test_before_megatrons_scheduler_it_packs_and_theirs_runs():
    class DefaultDynamicCPScheduler:
        """Megatron-core's shape, as its main branch has it; the package itself needs CUDA."""

        def __init__(self, *_, **__):
            raise AssertionError("ours makes itself")

        def run(self, pairs):
            return self.get_groups_and_subsamples(pairs)

        def get_groups_and_subsamples(self, pairs):
            raise AssertionError("ours packs")

    class Balanced(BalancedPackingScheduler, DefaultDynamicCPScheduler):
        pass

    assert Balanced(8, 1, 2, None, max_num_seqs=None).run([(5, 8), (6, 8)]) == [[[5], [6]]]
    assert Balanced(8, 1, 2, None, min_cp_size=1).run([(5, 16)]) == [[[5], [5]]]
