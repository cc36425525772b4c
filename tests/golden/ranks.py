"""What ranks do in processes of their own: dispatch payloads drawn from seeds, and tell what arrived and came home."""

import tempfile

import numpy as np
from golden.library import homes_of, lengths_of
from golden.told import kinds_of, sha

import balancer
from balancer import MicroBatches, Phase

COUNTS = (7, 0, 4, 9)
"""Samples of each rank's mini-batch."""

_PLAIN = {
    "any": {"placement": "any"},
    "rearrange": {"placement": "rearrange", "ranks_per_node": 2},
    "relocate": {"placement": "relocate", "ranks_per_node": 2},
    "broadcast": {"placement": "relocate", "planning": "broadcast"},
    "costs": {"cost": "quadratic:a=24576,b=1", "eps": 0.05},
    "equal counts": {"equal_counts": True},
    "columns": {"keep_together": "prompt", "caps": {"kv": 150}, "allowed_ranks": "may_run_on"},
    "micro-batches": {"cut": MicroBatches(60)},
    "own": {"cut": MicroBatches(30, "step", over_long="own")},
}
_PHASES = (
    Phase("vision", "pixels", outputs="tokens_of_image"),
    Phase("audio", "mel"),
    Phase("llm", "total", own="text"),
)
_SEVERAL = {
    "phases": {},
    "phases, relocate": {"placement": "relocate", "ranks_per_node": 2},
    "phases, joint": {"mode": "joint", "placement": "rearrange"},
    "phases, micro-batches": {"cut": MicroBatches(40)},
    "phases, encoders first": {"cut": MicroBatches(40, encoders="step")},
}


def told_by(rank, size):
    """Dispatch and restore in every configuration; return what this rank saw of each."""
    one = {name: _one_phase(rank, _settings(given, size)) for name, given in _PLAIN.items()}
    several = {name: _several_phases(rank, _settings(given, size)) for name, given in _SEVERAL.items()}
    return one | several | {"refused": _refused(rank), "prefetched": _prefetched(rank)}


def _settings(given, size):
    """Two ranks make one node, or two of one rank each where nodes are meant to differ."""
    settings = dict(given)
    if "ranks_per_node" in settings and size == 2:
        settings["ranks_per_node"] = 1
    return settings


def _mini_batch(rank, step=0):
    import torch

    n = COUNTS[rank]
    rng = np.random.default_rng([rank, step])
    lengths = rng.integers(1, 40, n)
    fields = {
        "ids": [torch.from_numpy(rng.integers(0, 1000, length)) for length in lengths.tolist()],
        "score": torch.from_numpy(rng.standard_normal((n, 3))),
        "text": [f"{rank}.{i} " + "é" * int(length % 5) for i, length in enumerate(lengths)],
        "images": [
            [torch.from_numpy(rng.integers(0, 256, (size, 2)).astype(np.uint8)) for size in sizes]
            for sizes in (rng.integers(1, 6, count).tolist() for count in rng.integers(0, 3, n))
        ],
    }
    columns = {
        "prompt": rng.integers(0, 9, n),
        "kv": rng.integers(1, 20, n),
        "may_run_on": [[0, 1]] * n,
    }
    return (fields, columns) if n else ({}, {})


def _multimodal(rank):
    import torch

    n = COUNTS[rank]
    rng = np.random.default_rng([rank, 77])
    tokens = [rng.integers(1, 5, count).tolist() for count in rng.integers(0, 4, n)]
    mel, text = rng.integers(0, 6, n) * rng.integers(0, 2, n), rng.integers(0, 7, n)
    fields = {
        "pixels": [[torch.from_numpy(rng.standard_normal((2 * size, 4))) for size in sizes] for sizes in tokens],
        "mel": [torch.from_numpy(rng.standard_normal((size, 3))) for size in mel.tolist()],
        "text": [torch.from_numpy(rng.integers(0, 11, size)) for size in text.tolist()],
        "id": [f"{rank}.{i}" for i in range(n)],
    }
    total = [sum(sizes) + int(a) + int(b) for sizes, a, b in zip(tokens, mel, text, strict=True)]
    return (fields, {"tokens_of_image": tokens, "total": total}) if n else ({}, {})


def _one_phase(rank, settings):
    from balancer.executor import Dispatcher

    fields, columns = _mini_batch(rank)
    used = {name for value in settings.values() for name in (value if isinstance(value, dict) else (value,))}
    columns = {name: column for name, column in columns.items() if name in used}
    out = Dispatcher(length="ids", **settings).dispatch(fields, columns)
    home = out.restore()
    return {
        "plan": out.plan.digest(),
        "samples": out.samples.tolist(),
        "lengths": out.lengths().tolist(),
        "slots": out.slot_bounds().tolist(),
        "fields": _of_fields(out),
        "home": _came_home(home, fields),
        "results": [value.item() for value in out.restore(_tensor(out.samples * 10))],
    }


def _several_phases(rank, settings):
    from balancer.executor import Dispatcher

    fields, columns = _multimodal(rank)
    ways = {"pixels": "vision", "mel": "audio", "text": "llm:own"}
    out = Dispatcher(phases=_PHASES, fields=ways, **settings).dispatch(fields, columns)
    return {
        "plan": out.plan.digest(),
        "samples": out.samples.tolist(),
        "slots": {name: out.slot_bounds(name).tolist() for name in out.plan.phases},
        "fields": _of_fields(out),
        "inputs": _inputs(out),
        "home": _came_home(out.restore(), fields),
    }


def _inputs(out):
    """Put the last phase's inputs together from what stands for activations: exact, and told apart."""
    import torch

    pixels = [image.reshape(-1, 8)[:, :5] for image in out["pixels"]]
    mel = [clip.repeat(1, 2)[:, :5] for clip in out["mel"]]
    text = [piece.double()[:, None].repeat(1, 5) for piece in out["text"]]
    vision, audio, own = (torch.cat([torch.empty((0, 5), dtype=torch.float64), *rows]) for rows in (pixels, mel, text))
    inputs = out.inputs("llm", {"vision": vision, "audio": audio}, own=own)
    return sha(_flat(inputs.values), [len(row) for row in inputs.rows()])


def _refused(rank):
    from balancer.executor import Dispatcher

    told = {}
    for name, settings in {
        "a cap": {"max_tokens_per_rank": 50},
        "an argument": {"cut": MicroBatches(60), "rank_speeds": [1] * 99},
        "a placement": {"placement": "near"},
        "a schedule": {"cut": MicroBatches(9)},
    }.items():
        try:
            Dispatcher(length="ids", **settings).dispatch(*_mini_batch(rank))
            told[name] = "went"
        except Exception as error:
            told[name] = [kinds_of(error), str(error).splitlines()]
    return told


def _prefetched(rank):
    from balancer.executor import Dispatcher, PrefetchDispatcher

    batches = [_mini_batch(rank, step)[0] for step in range(3)]
    steps = PrefetchDispatcher(batches, Dispatcher(length="ids"))
    return [[steps.dispatcher.current.samples.tolist(), _of_fields(batch)] for batch in steps]


def _tensor(array):
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))


def _of_fields(out):
    return {name: sha(_flat(out[name])) for name in sorted(out)}


def _flat(value):
    """A field as types, shapes and bytes."""
    import torch

    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.detach().contiguous().numpy().tobytes()]
    return [_flat(entry) for entry in value] if isinstance(value, list) else value


def _came_home(home, fields):
    """Whether a mini-batch is what it was; an empty one comes home with the names of the others' fields."""
    if not fields:
        return all(len(field) == 0 for field in home.values())
    return {name: _flat(field) for name, field in home.items()} == {
        name: _flat(field) for name, field in fields.items()
    }


def sampled():
    """Tell which rows a loader reads of plans and plan files, rank by rank."""
    from balancer.compat import PlannedBatchSampler

    plans = {
        "plain": balancer.balance(lengths_of("uniform", 60), 4, home_rank=homes_of("random", 60, 4)),
        "own": balancer.balance(lengths_of("lognormal", 60), 4, cut=MicroBatches(3_000, over_long="own")),
    }
    told = {}
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        for name, plan in plans.items():
            plan.save(file.name)
            for source in (plan, file.name):
                kind = "file" if source is file.name else "plan"
                read = [list(PlannedBatchSampler(source, rank, micro_batches=True)) for rank in range(4)]
                told[f"{name}, {kind}"] = sha(read)
    return told
