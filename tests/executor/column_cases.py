"""What ranks do in tests of constraints: each knows all ranks' columns, so that it can plan the batch by itself."""

from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from dispatch_cases import dispatcher

import balancer
from balancer.executor import Dispatcher

SAMPLES = 9


def columns_of(rank):
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


def caps():
    """Limits a little over the fair share."""
    size = dist.get_world_size()
    both = whole("patches") + whole("audio")
    return {
        "patches": int(whole("patches").sum() / size * 1.2) + 30,
        "patches+audio": int(both.sum() / size * 1.2) + 40,
    }


def mask():
    allowed = np.zeros((SAMPLES * dist.get_world_size(), dist.get_world_size()), dtype=bool)
    for sample, ranks in enumerate(whole("ranks")):
        allowed[sample, ranks] = True
    return allowed


def speeds():
    return [1 + rank % 2 for rank in range(dist.get_world_size())]


def settings_of(case):
    """For one case what the dispatcher is given, and what balance is."""
    size = dist.get_world_size()
    limits = caps()
    named = {
        "caps": {"caps": limits},
        "keep_together": {"keep_together": "prompt"},
        "allowed_ranks": {"allowed_ranks": "ranks"},
        "pinned": {"allowed_ranks": "pinned"},
        "equal_counts": {"equal_counts": True, "max_tokens_per_rank": int(whole("tokens").sum() / size * 1.2) + 60},
        "counts": {"min_samples_per_rank": 5, "max_samples_per_rank": 14},
        "speeds": {"rank_speeds": speeds(), "initial_loads": [10] * size},
        "prefix": {"prefix": "uid", "prefix_length": "prompt_tokens"},
        "together": {"caps": {"patches": limits["patches"]}, "equal_counts": True, "rank_speeds": None},
    }[case]
    given = dict(named)
    if "caps" in named:
        amounts = {"patches": whole("patches"), "patches+audio": whole("patches") + whole("audio")}
        given["caps"] = {name: (amounts[name], limit) for name, limit in named["caps"].items()}
    if "keep_together" in named:
        given["keep_together"] = whole("prompt")
    if "prefix" in named:
        given = {"prefix": whole("uid"), "prefix_length": whole("prompt_tokens")}
    if "allowed_ranks" in named:
        given["allowed_ranks"] = mask() if case == "allowed_ranks" else np.eye(size, dtype=bool)[whole("pinned")]
    return named, given


def plans_as_balance_does(rank, case, way):
    """The dispatcher's plan is the one that balance makes of the gathered columns, and its constraints are kept."""
    named, given = settings_of(case)
    size = dist.get_world_size()
    made = dispatcher(length="tokens", planning=way, **named)
    out = made.dispatch({"id": [SAMPLES * rank + i for i in range(SAMPLES)]}, columns_of(rank))
    home = np.repeat(np.arange(size), SAMPLES)
    wanted = balancer.balance(whole("tokens"), size, home_rank=home, **given)
    assert out.plan == wanted
    assert out["id"] == wanted.samples_on_rank(rank).tolist()
    kept = out["id"]
    for name, (amounts, limit) in given.get("caps", {}).items():
        assert amounts[kept].sum() <= limit, name
    if "allowed_ranks" in given:
        assert given["allowed_ranks"][kept, rank].all()
    if "keep_together" in given:
        return sorted(set(whole("prompt")[kept].tolist()))
    return []


def lists_are_summed(rank):
    """Length and caps may name a field of several items a sample: all of them count."""
    images = [[torch.ones(1 + (rank + i + k) % 4, 2) for k in range(i % 3)] for i in range(6)]
    out = dispatcher(length="images", caps={"images": 1000}).dispatch({"images": images})
    assert [sum(map(len, sample)) for sample in out["images"]] == out.lengths().tolist()


def wrong(rank, settings, columns):
    data = {"id": [0] * SAMPLES}
    dispatcher(length="tokens", **settings).dispatch(data, columns_of(rank) | columns)


def one_sample_fits_nowhere(rank, odd, way):
    columns = {"tokens": [70 if rank == odd and i == 4 else 1 for i in range(SAMPLES)]}
    made = dispatcher(length="tokens", max_tokens_per_rank=60, planning=way)
    made.dispatch({"id": [0] * SAMPLES}, columns)


def one_length_is_negative(rank, odd, column, given):
    """In a column that the plan uses, or in one that it does not, of numbers or of lists."""
    columns = {"tokens": [1] * SAMPLES} | {column: [[1]] * SAMPLES if isinstance(given, list) else [1] * SAMPLES}
    if rank == odd:
        columns[column][4] = given
    dispatcher(length="tokens").dispatch({"id": [0] * SAMPLES}, columns)


def keys_may_be_negative(rank):
    columns = {"tokens": [1] * SAMPLES, "prompt": [-(i % 3) for i in range(SAMPLES)]}
    dispatcher(length="tokens", keep_together="prompt").dispatch({"id": [0] * SAMPLES}, columns)


def items_that_do_not_fit(rank, odd):
    """One sample has two images by its column, and one by its field."""
    pixels = [[torch.ones(2)] * (2 if rank == odd and i == 1 else 1) for i in range(3)]
    made = dispatcher(phases={"vision": "images", "llm": "text"}, fields={"pixels": "vision"})
    made.dispatch({"pixels": pixels}, {"images": [[2]] * 3, "text": [5] * 3})


def too_few_samples(rank, settings):
    """There is one sample in all, on rank 0."""
    made = dispatcher(length="tokens", cut=balancer.MicroBatches(9, **settings))
    batch = made.dispatch({"id": ["one"]} if rank == 0 else {}, {"tokens": [5]} if rank == 0 else {})
    assert len(batch.slot_bounds()) == 2


def limits_of_micro_batches(rank, way):
    """Micro-batches keep limits that name columns, and the plan is the one that balance makes of the gathered ones."""
    columns = columns_of(rank)
    limits = [balancer.CountLimit(4), balancer.Limit("patches", 50), balancer.Everywhere("patches")]
    made = dispatcher(length="tokens", planning=way, cut=balancer.MicroBatches(90, limits=limits))
    given = {name: columns[name] for name in ("tokens", "patches")}
    out = made.dispatch({"id": [SAMPLES * rank + i for i in range(SAMPLES)]}, given)
    home = np.repeat(np.arange(dist.get_world_size()), SAMPLES)
    arrays = [balancer.CountLimit(4), balancer.Limit(whole("patches"), 50), balancer.Everywhere(whole("patches") > 0)]
    cut = balancer.MicroBatches(90, limits=arrays)
    wanted = balancer.balance(whole("tokens"), dist.get_world_size(), home_rank=home, cut=cut)
    assert out.plan.digest() == wanted.digest()
    assert out["id"] == wanted.samples_on_rank(rank).tolist()
    has_patches = []
    for start, stop in pairwise(out.slot_bounds().tolist()):
        held = out["id"][start:stop]
        assert len(held) <= 4
        assert whole("patches")[held].sum() <= 50
        has_patches.append(bool((whole("patches")[held] > 0).any()))
    return has_patches


def makes(rank, arguments):
    Dispatcher(**arguments)


ARGUMENTS_THAT_CANNOT_BE = [
    ({"fields": {"pixels": "vision"}}, "ValueError", "fields['pixels'] must be one of all, got 'vision'"),
    (
        {"phases": {"vision": "pixels", "llm": "text"}, "fields": {"pixels": "visoin"}},
        "ValueError",
        "fields['pixels'] must be one of vision, llm:own, llm, got 'visoin'",
    ),
    ({"phases": ["llm"]}, "TypeError", "phases must be Phase, or map names to lengths, got 'llm'"),
    ({"planning": "twice"}, "ValueError", "planning must be one of replicate, broadcast, got 'twice'"),
    ({"timeout": 5}, "ValueError", "timeout must be a timedelta above 0, got 5"),
]
