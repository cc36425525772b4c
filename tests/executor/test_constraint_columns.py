"""Constraints inside a trainer: those of balance, with columns of each rank's mini-batch where it takes arrays."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from dispatch_cases import dispatcher
from each_rank import each_rank, everywhere, same_everywhere
from ranks_of import ranks_of

import balancer
from balancer import MicroBatches, Phase, Topology
from balancer.executor import Dispatcher
from balancer.executor.arguments import as_setup
from balancer.executor.ranks import ExecutorError
from solvers.errors import InfeasibleError, UsageError

SAMPLES = 9
NAMES = {"id": [0] * SAMPLES}

ranks = ranks_of(1, 4)


def columns_of(rank):
    """A rank's columns; each rank knows those of all, so that it can plan the batch by itself."""
    rng = np.random.default_rng([rank, 5])
    tokens = rng.integers(1, 60, SAMPLES)
    uid = np.random.default_rng([rank, 7]).integers(0, 6, SAMPLES)
    return {
        "tokens": tokens,
        "uid": uid,
        "prompt_tokens": uid % 2,
        "patches": rng.integers(0, 30, SAMPLES) * rng.integers(0, 2, SAMPLES),
        "audio": rng.integers(0, 9, SAMPLES),
        "prompt": rng.integers(0, 12, SAMPLES),
        "ranks": [sorted({int(r) for r in rng.integers(0, dist.get_world_size(), 3)}) for _ in range(SAMPLES)],
        "pinned": rng.integers(0, dist.get_world_size(), SAMPLES),
    }


def whole(name):
    rows = [columns_of(rank)[name] for rank in range(dist.get_world_size())]
    return [row for of_rank in rows for row in of_rank] if name == "ranks" else np.concatenate(rows)


def settings_of(case):
    """For one case what the dispatcher is given, and what balance is."""
    size = dist.get_world_size()
    amounts = {"patches": whole("patches"), "patches+audio": whole("patches") + whole("audio")}
    caps = {
        name: int(amount.sum() / size * 1.2) + 40 for name, amount in amounts.items()
    }  # a little over the fair share
    allowed = np.zeros((SAMPLES * size, size), dtype=bool)
    for sample, held in enumerate(whole("ranks")):
        allowed[sample, held] = True
    most = int(whole("tokens").sum() / size * 1.2) + 60
    alike = {
        "counts": {"min_samples_per_rank": 5, "max_samples_per_rank": 14},
        "speeds": {"rank_speeds": [1 + rank % 2 for rank in range(size)], "initial_loads": [10] * size},
    }
    if case in alike:
        return alike[case], alike[case]
    return {
        "keep_together": ({"keep_together": "prompt"}, {"keep_together": whole("prompt")}),
        "allowed_ranks": ({"allowed_ranks": "ranks"}, {"allowed_ranks": allowed}),
        "pinned": ({"allowed_ranks": "pinned"}, {"allowed_ranks": np.eye(size, dtype=bool)[whole("pinned")]}),
        "prefix": (
            {"prefix": "uid", "prefix_length": "prompt_tokens"},
            {"prefix": whole("uid"), "prefix_length": whole("prompt_tokens")},
        ),
        "together": (
            {"caps": caps, "equal_counts": True, "max_tokens_per_rank": most},
            {
                "caps": {name: (amounts[name], cap) for name, cap in caps.items()},
                "equal_counts": True,
                "max_tokens_per_rank": most,
            },
        ),
    }[case]


CASES = ["keep_together", "allowed_ranks", "pinned", "counts", "speeds", "prefix", "together"]


@pytest.mark.parametrize(("case", "way"), [*((case, "replicate") for case in CASES), ("together", "broadcast")])
@each_rank
def test_the_plan_is_that_of_balance(rank, case, way):
    """The dispatcher's plan is the one that balance makes of the gathered columns, and its constraints are kept."""
    (named, arrays), size = settings_of(case), dist.get_world_size()
    made = dispatcher(length="tokens", planning=way, **named)
    out = made.dispatch({"id": [SAMPLES * rank + i for i in range(SAMPLES)]}, columns_of(rank))
    wanted = balancer.balance(whole("tokens"), size, home_rank=np.repeat(np.arange(size), SAMPLES), **arrays)
    assert out.plan == wanted
    kept = out["id"]
    assert kept == wanted.samples_on_rank(rank).tolist()
    for name, (amounts, limit) in arrays.get("caps", {}).items():
        assert amounts[kept].sum() <= limit, name
    if "allowed_ranks" in arrays:
        assert arrays["allowed_ranks"][kept, rank].all()
    if case == "keep_together":  # a key is on one rank
        held = everywhere(sorted(set(whole("prompt")[kept].tolist())))
        assert sum(map(len, held)) == len({key for keys in held for key in keys})


@each_rank
def test_micro_batches_keep_their_limits(rank):
    """Limits name columns, and the plan is the one that balance makes of the gathered ones."""
    columns, size = columns_of(rank), dist.get_world_size()

    def cut(patches, there):
        limits = [balancer.CountLimit(4), balancer.Limit(patches, 50), balancer.Everywhere(there)]
        return MicroBatches(90, limits=limits)

    made = dispatcher(length="tokens", cut=cut("patches", "patches"))
    given = {name: columns[name] for name in ("tokens", "patches")}
    out = made.dispatch({"id": [SAMPLES * rank + i for i in range(SAMPLES)]}, given)
    arrays = cut(whole("patches"), whole("patches") > 0)
    wanted = balancer.balance(whole("tokens"), size, home_rank=np.repeat(np.arange(size), SAMPLES), cut=arrays)
    assert out.plan.digest() == wanted.digest()
    assert out["id"] == wanted.samples_on_rank(rank).tolist()
    has_patches = []
    for start, stop in pairwise(out.slot_bounds().tolist()):
        held = out["id"][start:stop]
        assert len(held) <= 4
        assert whole("patches")[held].sum() <= 50
        has_patches.append(bool((whole("patches")[held] > 0).any()))
    assert len(same_everywhere(has_patches)) > 1  # patches are on all ranks of a slot, or on none


@each_rank
def test_a_field_of_several_items_counts_with_all_of_them(rank):
    images = [[torch.ones(1 + (rank + i + k) % 4, 2) for k in range(i % 3)] for i in range(6)]
    out = dispatcher(length="images", caps={"images": 1000}).dispatch({"images": images})
    assert [sum(map(len, sample)) for sample in out["images"]] == out.lengths().tolist()


@pytest.mark.parametrize(
    ("settings", "columns", "name", "text"),
    [
        ({"caps": {"pixels": 9}}, {}, "ValueError", "no column 'pixels'; columns there are: "),
        ({"caps": {"patches": 1}}, {}, "InfeasibleError", "patches = 1"),
        ({"keep_together": "ranks"}, {}, "ArgumentError", "a column of one key a sample, got 'ranks', of lists"),
        ({"allowed_ranks": "pinned"}, {"pinned": [99] * 9}, "UsageError",
         "pinned of sample 0 (entry 0 of rank 0) must be ranks within 0.."),
        ({"allowed_ranks": "ranks"}, {"ranks": [[]] * 8 + [[0]]}, "InfeasibleError", "sample 0"),
    ],
)  # fmt: skip
@each_rank
def test_what_no_step_can_keep_is_an_error_on_all(rank, settings, columns, name, text):
    with pytest.raises((ValueError, InfeasibleError)) as caught:
        dispatcher(length="tokens", **settings).dispatch(NAMES, columns_of(rank) | columns)
    assert type(caught.value).__name__ == name
    assert text in str(caught.value)


@each_rank
def test_errors_say_which_entry_of_which_rank_a_sample_is(rank):
    last = dist.get_world_size() - 1
    what, is_last = rf"of sample {9 * last + 4} \(entry 4 of rank {last}\) must be >= 0, got -1", rank == last
    for way in ("replicate", "broadcast"):
        made = dispatcher(length="tokens", max_tokens_per_rank=60, planning=way)
        planner = way == "replicate" or rank == 0
        with pytest.raises(InfeasibleError if planner else ExecutorError) as caught:
            made.dispatch(NAMES, {"tokens": [70 if is_last and i == 4 else 1 for i in range(SAMPLES)]})
        assert f"sample {9 * last + 4} (entry 4 of rank {last}) has length 70" in str(caught.value)
    for column, good, bad in (("tokens", 1, -1), ("patches", 1, -1), ("images", [1], [3, -1])):  # asked for, or not
        given = {"tokens": [1] * SAMPLES} | {column: [bad if is_last and i == 4 else good for i in range(SAMPLES)]}
        with pytest.raises(UsageError, match=f"column '{column}' {what}"):
            dispatcher(length="tokens").dispatch(NAMES, given)
    keys = {"tokens": [1] * SAMPLES, "prompt": [-(i % 3) for i in range(SAMPLES)]}  # which may be negative
    dispatcher(length="tokens", keep_together="prompt").dispatch(NAMES, keys)
    # One sample has two images by its column, and one by its field.
    pixels = [[torch.ones(2)] * (2 if is_last and i == 1 else 1) for i in range(3)]
    made = dispatcher(phases={"vision": "images", "llm": "text"}, fields={"pixels": "vision"})
    what = rf"of sample {3 * last + 1} \(entry 1 of rank {last}\), 'vision' has 1 items of it"
    with pytest.raises(ValueError, match=what):
        made.dispatch({"pixels": pixels}, {"images": [[2]] * 3, "text": [5] * 3})


@each_rank
def test_a_step_of_too_few_samples_says_what_permits_it(rank):
    """There is one sample in all, on rank 0."""
    given = ({"id": ["one"]}, {"tokens": [5]}) if rank == 0 else ({},)
    if dist.get_world_size() > 1:
        with pytest.raises(InfeasibleError, match="allow_empty=True permits empty micro-batches"):
            dispatcher(length="tokens", cut=MicroBatches(9)).dispatch(*given)
    batch = dispatcher(length="tokens", cut=MicroBatches(9, allow_empty=True)).dispatch(*given)
    assert len(batch.slot_bounds()) == 2


FOUR = Topology.uniform(4, None)
TWO = {"v": "p", "llm": "t"}


@pytest.mark.parametrize(
    ("phases", "length", "settings", "error", "text"),
    [
        (None, None, {"cap": 3}, TypeError, "no setting 'cap'; those there are: allowed_ranks, caps, cut"),
        (None, None, {"caps": {"patches": 0.5}}, ValueError, "caps must map columns to whole numbers >= 1; 'patches'"),
        (None, None, {"allowed_ranks": [[True] * 4]}, TypeError, "allowed_ranks must name a column"),
        (None, None, {"keep_together": 3}, TypeError, "keep_together must name a column"),
        (None, None, {"rank_speeds": [1, 2]}, ValueError, "a number for each of 4 ranks"),
        (None, None, {"cut": 512}, TypeError, r"cut must be one of balancer's cuts, such as MicroBatches\(8192\)"),
        (None, None, {"cut": MicroBatches(9), "rank_speeds": [1] * 4}, ValueError, "cannot be combined with rank_sp"),
        (None, None, {"min_samples_per_rank": 3, "max_samples_per_rank": 2}, ValueError, "contradicts max_samples_per"),
        (None, None, {"caps": {"patches+": 3}}, ValueError, "no column ''"),
        (None, "qwen2vl_patches(w,h)", {}, ValueError, "must be columns of numbers"),
        ([], None, {}, ValueError, "at least one phase"),
        (TWO, None, {"mode": "both"}, ValueError, "mode must be one of separate, joint, got 'both'"),
        (TWO, None, {"group_size": 3}, ValueError, "group_size must divide the 4 ranks"),
        (TWO, None, {"max_tokens_per_rank": 3}, TypeError, "with phases, constraints are those of each Phase"),
        (TWO, "tokens", {}, ValueError, "leave length and cost out"),
    ],
)
def test_what_no_step_can_be_planned_by_is_refused_before_the_first(phases, length, settings, error, text):
    with pytest.raises(error, match=text):
        as_setup(FOUR, phases, "linear", length, settings)


@pytest.mark.parametrize(
    "settings", [{"min_samples_per_rank": 1}, {"cut": MicroBatches(9)}, {"equal_counts": True}, {"method": "exact"}]
)
def test_a_rehearsal_without_samples_refuses_nothing_that_needs_some(settings):
    as_setup(FOUR, None, "linear", "tokens", settings)
    phases = [Phase("v", "images", every_rank_nonempty=True), Phase("llm", "text", own="pieces")]
    as_setup(FOUR, phases, "linear", None, {"mode": "joint"})


@each_rank
def test_arguments_that_cannot_be_are_refused_by_the_dispatcher(rank):
    phases = {"vision": "pixels", "llm": "text"}
    for arguments, error, text in [
        ({"fields": {"pixels": "vision"}}, ValueError, "fields['pixels'] must be one of all, got 'vision'"),
        ({"phases": phases, "fields": {"pixels": "visoin"}}, ValueError, "one of vision, llm:own, llm, got 'visoin'"),
        ({"phases": ["llm"]}, TypeError, "phases must be Phase, or map names to lengths, got 'llm'"),
        ({"planning": "twice"}, ValueError, "planning must be one of replicate, broadcast, got 'twice'"),
        ({"timeout": 5}, ValueError, "timeout must be a timedelta above 0, got 5"),
    ]:
        with pytest.raises(error) as caught:
            Dispatcher(**arguments)
        assert text in str(caught.value)
