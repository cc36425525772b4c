"""Calls of :mod:`balancer` whose plans are recorded, by name; lengths and homes are drawn from seeds."""

import os
import tempfile
from dataclasses import replace

import numpy as np
from golden.told import attempted, of_plan, of_step, rounded, sha

import balancer
from balancer import MicroBatches, Phase, Ragged, Topology
from balancer.compat import verl
from balancer.cost import MODELS, OnlineCost, SaturatingThroughput, flops, integer_seconds, module, parse_cost
from balancer.offline.load import checked_steps
from balancer.simulate import CLUSTERS, PhaseModel, step_time


def _lognormal(rng, n):
    return np.minimum(rng.lognormal(6.5, 1, n), 16384).astype(np.int64)


def _with_outliers(rng, n):
    lengths = _lognormal(rng, n)
    lengths[rng.choice(n, 3, replace=False)] = [2**40, 10**6, 10**6]
    return lengths


_DRAWN = {
    "lognormal": _lognormal,
    "uniform": lambda rng, n: rng.integers(1, 4000, n),
    "zeros": lambda rng, n: rng.integers(0, 3000, n) * rng.integers(0, 2, n),
    "all zero": lambda rng, n: np.zeros(n, dtype=np.int64),
    "outliers": _with_outliers,
}

_BATCHES = {
    "lognormal": (1000, 16), "uniform": (601, 12), "zeros": (200, 8), "all zero": (24, 4), "outliers": (500, 16),
}  # fmt: skip


def lengths_of(kind, n):
    """Lengths by the name of a distribution."""
    return _DRAWN[kind](np.random.default_rng([n, len(kind)]), n)


def homes_of(kind, n, num_ranks):
    """Where samples lie, by the name of a pattern."""
    rng = np.random.default_rng([n, num_ranks])
    return {
        "contiguous": lambda: np.arange(n) // max(1, -(-n // num_ranks)),
        "strided": lambda: np.arange(n) % num_ranks,
        "random": lambda: rng.integers(0, num_ranks, n),
        "one rank": lambda: np.full(n, num_ranks - 1),
    }[kind]()


def _balanced(kind, n, num_ranks, homes=None, **settings):
    """Return a call of ``balance``; settings that are functions make a value of the samples' number."""

    def call():
        made = {name: value(n) if callable(value) else value for name, value in settings.items()}
        home_rank = None if homes is None else homes_of(homes, n, num_ranks)
        return of_plan(balancer.balance(lengths_of(kind, n), num_ranks, home_rank=home_rank, **made))

    return call


def _of_batches():
    """Every kind of batch, with every placement."""
    sizes = {**{kind: (kind, *size) for kind, size in _BATCHES.items()}, "few": ("uniform", 5, 8)}
    sizes |= {"empty": ("uniform", 0, 4), "one rank": ("uniform", 20, 1), "large": ("lognormal", 4096, 64)}
    for name, (kind, n, ranks) in sizes.items():
        per_node = 4 if ranks % 4 == 0 else None
        yield f"{name}, no homes", _balanced(kind, n, ranks, ranks_per_node=per_node)
        for placement in ("relocate", "rearrange", "any"):
            settings = {"placement": placement, "ranks_per_node": per_node}
            yield f"{name}, {placement}", _balanced(kind, n, ranks, "contiguous", **settings)


def _of_homes():
    for homes in ("strided", "random", "one rank"):
        for eps in (0, 0.001, 0.05):
            settings = {"eps": eps, "ranks_per_node": 4}
            yield f"homes {homes}, eps {eps}", _balanced("lognormal", 480, 16, homes, **settings)
    uneven = Topology(node_sizes=[1, 3, 8, 4])
    for placement in ("relocate", "rearrange"):
        settings = {"topology": uneven, "placement": placement}
        yield f"uneven nodes, {placement}", _balanced("lognormal", 480, 16, "random", **settings)


_COSTS = {
    "quadratic": "quadratic:a=24576,b=1",
    "padded": "padded",
    "convolution": "convolution:a=24576,b=1,c=100,p=1",
    "flops": "flops:qwen2-7b",
    "scaled": "linear:a=7",
}


def _of_costs():
    for name, cost in _COSTS.items():
        for placement in ("relocate", "rearrange"):
            settings = {"cost": cost, "ranks_per_node": 4, "placement": placement}
            yield f"{name}, {placement}", _balanced("lognormal", 400, 16, "contiguous", **settings)
        equal = {"cost": cost, "equal_counts": True}
        yield f"{name}, equal counts", _balanced("uniform", 250, 8, **equal)
        yield f"{name}, a cap", _balanced("uniform", 250, 8, max_tokens_per_rank=90_000, **equal)


def _of_methods():
    for method in ("auto", "lpt", "karmarkar_karp"):
        for equal in (False,) if method == "karmarkar_karp" else (False, True):
            settings = {"method": method, "equal_counts": equal}
            yield f"{method}, equal counts {equal}", _balanced("uniform", 300, 12, **settings)


def _mask(n):
    mask = np.random.default_rng(n).random((n, 8)) < 0.4
    mask[:, 0] = True
    return mask


def _amounts(n):
    return np.random.default_rng(n + 1).integers(1, 60, n)


_CONSTRAINTS = {
    "equal counts": {"equal_counts": True},
    "max tokens": {"max_tokens_per_rank": 78_000},
    "min samples": {"min_samples_per_rank": 35},
    "max samples": {"max_samples_per_rank": 42},
    "keep together": {"keep_together": lambda n: np.arange(n) // 3 * 7 % 40},
    "keep together by name": {"keep_together": lambda n: [f"prompt {i % 60}" for i in range(n)]},
    "caps": {"caps": lambda n: {"kv": (_amounts(n), 1_300), "twice": (2 * _amounts(n)[::-1], 2_600)}},
    "allowed ranks": {"allowed_ranks": _mask},
    "initial loads": {"initial_loads": [0, 10_000, 500, 0, 90_000, 3, 0, 40_000]},
    "rank speeds": {"rank_speeds": [1, 2, 3, 4, 5, 4, 3, 2]},
    "speeds and loads": {"rank_speeds": [1, 1, 1, 1, 2, 2, 2, 2], "initial_loads": [9_000, *[0] * 7]},
    "equal counts under a cap": {"equal_counts": True, "max_tokens_per_rank": 78_000},
    "together under caps": {
        "keep_together": lambda n: np.arange(n) // 2,
        "caps": lambda n: {"kv": (_amounts(n), 1_300)},
        "max_samples_per_rank": 44,
    },
    "all at once": {
        "keep_together": lambda n: np.arange(n) // 2,
        "allowed_ranks": lambda n: _mask(n // 2).repeat(2, axis=0),
        "max_tokens_per_rank": 100_000,
        "min_samples_per_rank": 10,
        "cost": "quadratic:a=24576,b=1",
    },
}


def _of_constraints():
    for name, constraints in _CONSTRAINTS.items():
        for placement in ("relocate", "rearrange"):
            settings = {"ranks_per_node": 4, "placement": placement, **constraints}
            yield f"{name}, {placement}", _balanced("uniform", 300, 8, "contiguous", **settings)


_CUTS = {
    "micro_batch": MicroBatches(16_384),
    "step": MicroBatches(16_384, "step"),
    "pipeline": MicroBatches(16_384, "pipeline", pipeline_stages=4),
    "fewest": MicroBatches(16_384, count="fewest"),
    "a number": MicroBatches(30_000, count=8),
    "at least, multiple": MicroBatches(60_000, at_least=3, multiple_of=4),
    "own": MicroBatches(3_000, over_long="own"),
    "empty ones": MicroBatches(90_000, count=30, allow_empty=True),
}


def _of_micro_batches():
    for name, cut in _CUTS.items():
        for placement, eps in (("relocate", 0.001), ("relocate", 0.05), ("rearrange", 0)):
            settings = {"ranks_per_node": 4, "placement": placement, "eps": eps, "cut": cut}
            yield f"{name}, {placement} {eps}", _balanced("lognormal", 200, 8, "contiguous", **settings)
    cut = {"cut": MicroBatches(16_384), "ranks_per_node": 4}
    for name, constraints in _CONSTRAINTS.items():
        yield f"under {name}", _balanced("uniform", 300, 8, "contiguous", **cut, **constraints)
    for name, cost in _COSTS.items():
        yield f"of cost {name}", _balanced("lognormal", 200, 8, "random", cost=cost, **cut)
    yield "few samples", _balanced("uniform", 3, 8, cut=MicroBatches(4_000, allow_empty=True))
    yield "no samples", _balanced("uniform", 0, 4, cut=MicroBatches(10))
    yield "large", _balanced("lognormal", 2048, 32, "contiguous", cut=MicroBatches(65_536), ranks_per_node=8)


def _of_errors():
    refused = {
        "negative length": lambda: balancer.balance([5, -1], 2),
        "fractions": lambda: balancer.balance([5, 1.5], 2),
        "text": lambda: balancer.balance(["a"], 2),
        "two dimensions": lambda: balancer.balance([[1, 2], [3, 4]], 2),
        "past int64": lambda: balancer.balance([2**62, 2**62], 2),
        "cost past int64": lambda: balancer.balance([1, 2**40], 2, cost="quadratic:a=0,b=1"),
        "homes too few": lambda: balancer.balance([1, 2], 2, home_rank=[0]),
        "homes outside": lambda: balancer.balance([1, 2], 2, home_rank=[0, 2]),
        "topology of others": lambda: balancer.balance([1], 4, topology=Topology(node_sizes=[3])),
        "cap below a sample": lambda: balancer.balance([9, 8, 7, 6], 2, max_tokens_per_rank=8),
        "cap, equal counts": lambda: balancer.balance([9, 1, 1, 9, 9, 1], 2, max_tokens_per_rank=15, equal_counts=True),
        "caps": lambda: balancer.balance([1, 1, 1], 2, caps={"kv": ([5, 5, 5], 9)}),
        "caps of others": lambda: balancer.balance([1, 1, 1], 2, caps={"kv": ([5, 5], 9)}),
        "nowhere allowed": lambda: balancer.balance([1, 1], 2, allowed_ranks=[[True, False], [False, False]]),
        "together, allowed": lambda: balancer.balance(
            [1, 1], 2, allowed_ranks=[[True, False], [False, True]], keep_together=[7, 7]
        ),
    }
    for name, call in refused.items():
        yield name, lambda call=call: repr(call())


_ENCODERS = (
    Phase("vision", "images", outputs="tokens", bytes_in=1176, bytes_out=8192),
    Phase("audio", "frames", outputs="audio", bytes_in=256),
    Phase("llm", "total", own="segments", bytes_in=4),
)


def multimodal_batch(n, seed=0):
    """Samples of several images each, audio or none, and text in segments."""
    rng = np.random.default_rng([seed, n])
    tokens = [rng.integers(1, 300, count).tolist() for count in rng.integers(0, 4, n)]
    frames = rng.integers(1, 3000, n) * rng.integers(0, 2, n)
    segments = [rng.integers(1, 900, count).tolist() for count in rng.integers(0, 3, n)]
    audio = -(-frames // 4)
    total = [sum(a) + int(b) + sum(c) for a, b, c in zip(tokens, audio, segments, strict=True)]
    return {
        "images": Ragged.of([[4 * size for size in sizes] for sizes in tokens]), "tokens": Ragged.of(tokens),
        "frames": frames, "audio": audio, "segments": Ragged.of(segments), "total": np.asarray(total, dtype=np.int64),
        "text": np.asarray([sum(sizes) for sizes in segments], dtype=np.int64),
    }  # fmt: skip


def _changed(**changes):
    """The phases above, with arguments changed by phase."""
    return tuple(replace(phase, **changes.get(phase.name, {})) for phase in _ENCODERS)


def _orchestrated(n=240, phases=_ENCODERS, topology=None, homes="contiguous", **settings):
    def call():
        over = Topology.uniform(8, 4) if topology is None else topology
        batch = multimodal_batch(n)
        made = {name: value(batch) if callable(value) else value for name, value in settings.items()}
        home_rank = None if homes is None else homes_of(homes, n, 8)
        return of_step(balancer.orchestrate(batch, phases, over, home_rank=home_rank, **made))

    return call


def _of_steps():
    for placement in ("relocate", "rearrange", "any"):
        for mode in ("separate", "joint"):
            yield f"{placement}, {mode}", _orchestrated(placement=placement, mode=mode)
    yield "no homes, one node", _orchestrated(homes=None, topology=8)
    yield "random homes, eps", _orchestrated(homes="random", eps=0.05)
    yield "uneven nodes", _orchestrated(topology=Topology(node_sizes=[1, 4, 3]))
    yield "one phase", _orchestrated(phases={"llm": "total"})
    yield "two phases by columns", _orchestrated(phases={"audio": "frames", "llm": "total"})
    for size in (2, 4):
        yield f"groups of {size}", _orchestrated(group_size=size, homes="random")
    equal = _changed(vision={"equal_counts": True}, llm={"max_tokens_per_rank": 40_000, "equal_counts": True})
    yield "per-phase constraints", _orchestrated(phases=equal)
    yield "no rank empty", _orchestrated(n=12, phases=_changed(vision={"every_rank_nonempty": True}))
    costs = _changed(vision={"cost": "quadratic:a=1000,b=1"}, audio={"cost": "padded"}, llm={"cost": "flops:qwen2-7b"})
    yield "costs", _orchestrated(phases=costs)
    yield "lpt", _orchestrated(method="lpt")
    for n in (0, 1, 3):
        yield f"{n} samples", _orchestrated(n=n)
    yield "many samples", _orchestrated(n=3000, mode="joint")


def _of_steps_in_slots():
    for sync in ("micro_batch", "step", "pipeline"):
        for encoders in ("slot", "step"):
            cut = MicroBatches(4_096, sync, encoders=encoders)
            yield f"{sync}, encoders by {encoders}", _orchestrated(cut=cut)
    joint = {"cut": MicroBatches(4_096, encoders="step"), "mode": "joint", "placement": "rearrange"}
    yield "joint encoders first", _orchestrated(**joint)
    yield "own", _orchestrated(cut=MicroBatches(1_000, over_long="own"), eps=0.05)
    yield "fewest", _orchestrated(cut=MicroBatches(8_192, count="fewest"), homes="random")


def _of_step_errors():
    batch, llm = {"a": [4, 0], "b": [5, 6]}, Phase("llm", "b")

    def refused(phases, columns=batch, ranks=2, **settings):
        return lambda: of_step(balancer.orchestrate(columns, phases, ranks, **settings))

    equal, capped = Phase("e", "a", equal_counts=True), Phase("e", "a", max_tokens_per_rank=3)
    two = [Phase("e", "a"), Phase("f", "a", cost="padded"), llm]
    yield from {
        "no phases": refused([]),
        "no such column": refused({"llm": "c"}),
        "names twice": refused([llm, llm]),
        "columns of unequal length": refused({"e": "a", "llm": "b"}, {"a": [1], "b": [1, 2]}),
        "outputs that do not match": refused(
            [Phase("e", "a", outputs="c"), llm], {"a": [[1], []], "c": [[1, 2], []], "b": [5, 6]}
        ),
        "items of whole samples": refused([Phase("llm", "a")], {"a": [[1], []]}),
        "lists as numbers": refused([Phase("llm", "a")], {"a": Ragged.of([[1], []])}),
        "negative": refused({"llm": "a"}, {"a": [1, -2]}),
        "joint, padded": refused(two, mode="joint"),
        "groups, equal counts": refused([equal, llm], ranks=4, group_size=2),
        "over a cap": refused([capped, llm]),
        "over a cap of the last": refused([Phase("e", "a"), Phase("llm", "b", max_tokens_per_rank=5)], ranks=1),
        "bytes past int64": refused({"llm": "a"}, {"a": [2**62, 2**61]}),
        "a name with a colon": lambda: Phase("a:b", "c"),
    }.items()


def _saved_and_loaded():
    plans = {
        "plain": balancer.balance(lengths_of("uniform", 90), 6, 3, homes_of("random", 90, 6)),
        "micro-batches": balancer.balance(lengths_of("lognormal", 90), 6, cut=MicroBatches(3_000, over_long="own")),
        "constraints": balancer.balance(lengths_of("uniform", 90), 6, equal_counts=True, max_tokens_per_rank=40_000),
    }
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, plan in plans.items():
            path = os.path.join(folder, "plan.parquet")
            plan.save(path)
            loaded = balancer.load_plan(path)
            told[name] = [loaded == plan, loaded.digest(), [p.digest() for p in checked_steps(path)]]
    return told


def _simulated():
    models = {
        name: PhaseModel.of(model, SaturatingThroughput(4e14, 512))
        for name, model in (("vision", "internvit-6b"), ("audio", "whisper-large-v3-encoder"), ("llm", "qwen2-7b"))
    }
    told = {}
    cuts = {
        "whole": None,
        "micro_batch": MicroBatches(4_096),
        "pipeline": MicroBatches(4_096, "pipeline", encoders="step"),
    }
    for name, cut in cuts.items():
        step = balancer.orchestrate(multimodal_batch(200), _ENCODERS, Topology.uniform(16, 8), cut=cut)
        for waits in ("phase", "step"):
            found = step_time(step, models, CLUSTERS["h100"], waits=waits)
            told[f"{name}, {waits}"] = _of_time(found)
    return told


def _of_time(found):
    names = ("seconds", "compute_s", "waiting_s", "exchange_s", "mfu", "activation_bytes", "num_slots")
    return rounded({name: getattr(found, name) for name in names})


def _costs_as_told():
    texts = (*_COSTS.values(), "flops:qwen2-72b", "convolution:a=3,c=2")
    online = OnlineCost(0.01, 1e-4, 1e-9)
    for length in (100, 2000, 700):
        online.observe([length, 2 * length], 3e-4 * length)
    told = {text: [str(parse_cost(text)), sha(parse_cost(text).sample_costs(np.arange(50)))] for text in texts}
    told |= {f"module {name}": rounded([module(name).parameters, str(flops(name))]) for name in sorted(MODELS)}
    told["seconds"] = str(integer_seconds({"c0": 0.012, "a": 1.14e-4, "b": 1.5e-9}).model)
    told["online"] = [str(online.integer_cost().model), rounded(online.predict([500, 600]))]
    return told


def _other_libraries():
    lengths = lengths_of("lognormal", 64).tolist()
    return {
        "partitions": verl.get_seqlen_balanced_partitions(lengths, 5, equal_size=False),
        "equal partitions": verl.get_seqlen_balanced_partitions(lengths, 5, equal_size=True),
        "few": verl.get_seqlen_balanced_partitions(lengths[:3], 5, equal_size=False),
        "micro-batches": verl.rearrange_micro_batches_idx(lengths, 16_384),
        "as many": verl.rearrange_micro_batches_idx(lengths, 16_384, num_batches_divided_by=4, force_group_size=2),
        "too long": attempted(lambda: verl.rearrange_micro_batches_idx(lengths, 100)),
    }


_FAMILIES = {
    "balance, batches": _of_batches, "balance, homes": _of_homes, "balance, costs": _of_costs,
    "balance, methods": _of_methods, "balance, constraints": _of_constraints,
    "balance, micro-batches": _of_micro_batches, "balance, errors": _of_errors, "orchestrate": _of_steps,
    "orchestrate, micro-batches": _of_steps_in_slots, "orchestrate, errors": _of_step_errors,
}  # fmt: skip

CALLS = {f"{family}: {name}": call for family, calls in _FAMILIES.items() for name, call in calls()} | {
    "plan files": _saved_and_loaded,
    "simulate": _simulated,
    "cost": _costs_as_told,
    "compat": _other_libraries,
}
