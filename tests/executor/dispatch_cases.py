"""What ranks do in tests of dispatch, in processes of their own; every rank knows all ranks' payload."""

import json
import warnings
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import torch
from payloads import batch_of, form, plain

from balancer import MicroBatches, ModuleLayout, Phase, StepLayout
from balancer.executor import Dispatcher, RaggedTensor, exchange

_DISPATCHERS = {}


def dispatcher(**arguments):
    """The same dispatcher for the same arguments: making one takes a group."""
    key = repr(sorted(arguments.items()))
    if key not in _DISPATCHERS:
        _DISPATCHERS[key] = Dispatcher(**arguments)
    return _DISPATCHERS[key]


def lengths_of(seed, rank, n):
    return np.random.default_rng([seed, rank, 99]).integers(0, 40, n)


def round_trip(rank, seed, counts, fields, arguments):
    """Dispatch and restore fields of any kind; a rank without samples gives none of them."""
    batches = [batch_of(seed, other, n, fields) for other, n in enumerate(counts)]
    wanted = {name: [entry for batch in batches for entry in plain(batch[name])] for name in fields}
    mine = batches[rank] if counts[rank] else {}
    lengths = {"tokens": lengths_of(seed, rank, counts[rank])} if counts[rank] else {}
    out = dispatcher(length="tokens", **arguments).dispatch(mine, lengths)
    if sum(counts):
        for name in fields:
            assert plain(out[name]) == [wanted[name][sample] for sample in out.samples], name
            usual = next(batch[name] for batch, n in zip(batches, counts, strict=True) if n)
            if fields[name][0] != "lists" or any(map(len, batches[rank][name])):
                assert form(out[name]) == form(usual), name
    back = out.restore()
    assert set(back) == (set(fields) if sum(counts) else set())
    for name in back:
        assert plain(back[name]) == plain(batches[rank][name]), name
    return out.plan.digest(), out.samples.tolist()


def round_trip_off_the_host(rank, seed, counts, fields):
    """As :func:`round_trip`, by the way that copies take where there are no runs of bytes."""
    with mock.patch.object(exchange, "_on_host", return_value=False):
        for placement in ("any", "relocate"):
            round_trip(rank, seed, counts, fields, {"placement": placement})


def results_come_home(rank, seed, counts):
    data, lengths = {"id": list(range(counts[rank]))}, {"tokens": lengths_of(seed, rank, counts[rank])}
    out = dispatcher(length="tokens").dispatch(*((data, lengths) if counts[rank] else ({},)))
    first = np.concatenate(([0], np.cumsum(counts)))
    mine = np.arange(first[rank], first[rank + 1])
    results = {
        "loss": torch.from_numpy(out.samples * 1.5),
        "logprobs": [torch.full((int(sample) % 5, 2), float(sample)) for sample in out.samples],
        "text": [f"answer {sample}" for sample in out.samples],
    }
    home = out.restore(results)
    assert home["loss"].tolist() == (mine * 1.5).tolist()
    assert home["text"] == [f"answer {sample}" for sample in mine]
    assert [row.tolist() for row in home["logprobs"]] == [[[float(s)] * 2] * (s % 5) for s in mine.tolist()]
    alone = out.restore(torch.from_numpy(out.samples))
    assert alone.tolist() == mine.tolist()


def single_fields(rank):
    rows = [torch.full((1 + 3 * rank + i,), rank * 10 + i) for i in range(3)]
    jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    for data in (rows, jagged, RaggedTensor(torch.cat(rows), [len(row) for row in rows])):
        out = dispatcher().dispatch(data)
        assert form(out.data) == form(data)
        assert plain(out.restore()) == plain(data)
    return out.plan.imbalance_ratio


LARGE = 2**18  # elements of 8 bytes, in two fields: what is kept and handed out again


def memory_is_the_callers(rank, kind):
    """What was handed out is nobody else's for as long as any row of it lives, and none of what was handed in."""
    made = dispatcher(placement="any")
    kept = []
    for step in range(4):
        rows = [torch.full((LARGE + rank + i,), 100 * step + 10 * rank + i) for i in range(2)]
        data = RaggedTensor(torch.cat(rows), [len(row) for row in rows]) if kind == "ragged" else rows
        out = made.dispatch(data)
        home = out.restore()
        for row in rows + ([data.values] if kind == "ragged" else []):
            row.fill_(-1)
        entries = (list(entry.rows()) if kind == "ragged" else entry for entry in (out.data, home))
        kept += [(row, int(row[0])) for entry in entries for row in entry[1:]]
        assert all((row == value).all() for row, value in kept)
    assert len(kept) >= 4


def changes_go_home(rank):
    """The mini-batch that restore takes home is the one that was handed out, as it is by then."""
    rows = [torch.full((5 + rank + i,), float(rank)) for i in range(3)]
    fields = {"list": rows, "flat": RaggedTensor(torch.cat(rows), [len(row) for row in rows]), "dense": torch.ones(3)}
    out = dispatcher(length="list", placement="any").dispatch(fields)
    for row in out["list"]:
        row += 1
    out["flat"].values.mul_(2)
    out["dense"].sub_(3)
    for _ in range(2):
        for row in out["list"]:  # as those do who want gradients of embeddings
            row.requires_grad_()
        out["flat"].values.requires_grad_()
        home = out.restore()
        assert not any(row.requires_grad for row in home["list"])
        assert all(torch.equal(row, was + 1) for row, was in zip(home["list"], rows, strict=True))
        assert torch.equal(home["flat"].values, 2 * torch.cat(rows))
        assert torch.equal(home["dense"], torch.full((3,), -2.0))


def with_another_default_device(rank):
    """What travels over the control group is on the host, whatever the default is."""
    torch.set_default_device("meta")
    try:
        rows = [torch.full((5 + rank + i,), float(rank), device="cpu") for i in range(3)]
        lengths = {"t": [1, 2, 3]}
        fields = {"rows": rows, "number": [1.5, 2.5, 3.5], "text": ["", "a", "b"], "none": [[], [], []]}
        home = dispatcher(length="t", planning="broadcast").dispatch(fields, lengths).restore()
    finally:
        torch.set_default_device(None)
    assert [row.tolist() for row in home.pop("rows")] == [row.tolist() for row in rows]
    assert home == {"number": fields["number"], "text": fields["text"], "none": fields["none"]}


def unreadable(rank, what):
    data = {
        "sparse": lambda: [torch.eye(3).to_sparse()],
        "meta": lambda: torch.empty(3, device="meta"),
        "mixed": lambda: [torch.ones(2), torch.ones(2, 2)],
        "dtypes": lambda: [[torch.ones(2)], [torch.ones(2).int()]],
        "grad": lambda: [torch.ones(2, requires_grad=True)],
        "objects": lambda: np.asarray([object()]),
        "strided": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "kinds": lambda: [torch.ones(2), "text"],
        "text": lambda: "text",
        "generator": lambda: iter([1]),
    }[what]()
    dispatcher().dispatch(data)


def bad_input_on_one_rank(rank, which):
    mine = {"a": torch.zeros(2, 2)}
    if rank == which:
        mine = {"a": {"no": "field"}}
    dispatcher(length="tokens").dispatch(mine, {"tokens": [1, 2]})


def other_fields_on_one_rank(rank, which, what):
    mine, lengths = {"a": torch.zeros(2, 2)}, {"tokens": [1, 2]}
    if rank == which:
        odd = {
            "name": {"b": torch.zeros(2)},
            "more": mine | {"extra": [1, 2]},
            "column": mine,
            "items": {"a": [[torch.zeros(2)], []]},
            "dtype": {"a": torch.zeros(2, 2).int()},
            "shape": {"a": torch.zeros(2, 3)},
        }
        mine, lengths = odd[what], lengths | ({"extra": [1, 1]} if what == "column" else {})
    dispatcher(length="tokens").dispatch(mine, lengths)


def numbers_are_lengths(rank, form):
    """A field of a number a sample is planned by as a column of these numbers is."""
    lengths = lengths_of(3, rank, 6) + 1
    ids = [torch.full((int(length),), rank) for length in lengths]
    given = {
        "list": list,
        "tensor": torch.tensor,
        "array": np.asarray,
        "scalars": lambda held: list(torch.tensor(held)),
    }
    out = dispatcher(length="length").dispatch({"ids": ids, "length": given[form](lengths.tolist())})
    usual = dispatcher(length="tokens").dispatch({"ids": ids}, {"tokens": lengths})
    assert out.plan.digest() == usual.plan.digest()
    assert [int(length) for length in out["length"]] == list(map(len, out["ids"]))
    assert [int(length) for length in out.restore()["length"]] == lengths.tolist()
    return out.plan.lengths.tolist()


def padded_to_unlike_widths(rank):
    dispatcher(length="ids").dispatch({"ids": torch.zeros(3, 5 + rank, dtype=torch.int64)})


def of_one_length(rank, steps):
    """Dispatch steps, each the lengths of every rank's samples; return what is warned of."""
    made = Dispatcher(length="tokens")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for lengths in steps:
            made.dispatch(*(({"id": list(range(len(lengths)))}, {"tokens": lengths}) if lengths else ({},)))
    return [str(each.message) for each in told]


def draws_of(rank, lengths, same):
    """Dispatch a first step that is, or is not, the same on all ranks; return what is warned of."""
    mine = lengths if same else [length + rank for length in lengths]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            Dispatcher(length="tokens").dispatch({"id": list(range(len(mine)))}, {"tokens": mine})
    return [str(each.message) for each in told]


def bad_results_on_one_rank(rank, which):
    out = dispatcher(length="tokens", equal_counts=True).dispatch({"a": torch.zeros(2, 2)}, {"tokens": [1, 2]})
    out.restore(torch.zeros(5 if rank == which else 2))


def micro_batches(rank):
    lengths = np.random.default_rng(rank).integers(1, 20, 8)
    out = dispatcher(length="tokens", cut=MicroBatches(50)).dispatch({"id": list(range(8))}, {"tokens": lengths})
    bounds = out.slot_bounds()
    held = [int(out.lengths()[start:stop].sum()) for start, stop in pairwise(bounds)]
    assert max(held) <= 50
    return len(held)


def of_a_step_file(rank, path):
    """A dispatcher of a step file does what one with the same arguments does; a file for other ranks is refused."""
    size = torch.distributed.get_world_size()
    lengths = np.random.default_rng(rank).integers(1, 20, 8)
    with open(f"{path}.{rank}", "w") as file:
        file.write(f'ranks = {size}\n[[phase]]\nlength = "tokens"\n[cut]\ntokens = 50\nsync = "step"\n')
    made = Dispatcher.from_step(f"{path}.{rank}", length="tokens")
    same = Dispatcher(length="tokens", cut=MicroBatches(50, "step"))
    plans = [each.dispatch({"id": list(range(8))}, {"tokens": lengths}).plan for each in (made, same)]
    assert plans[0].digest() == plans[1].digest()
    with open(f"{path}.{rank}", "w") as file:
        file.write('batch_per_rank = 3\n[[phase]]\nlength = "tokens"\n[cut]\ntokens = 50\n')
    made = Dispatcher.from_step(f"{path}.{rank}")
    made.dispatch({"id": [1, 2, 3]}, {"tokens": [1, 2, 3]})
    with pytest.raises(ValueError, match=rf"step.toml.{rank}: batch_per_rank is 3, but this rank hands in 4 samples"):
        made.dispatch({"id": [1, 2, 3, 4]}, {"tokens": [1, 2, 3, 4]})
    with open(f"{path}.{rank}", "w") as file:
        file.write('[[phase]]\nlength = "tokens"\nmin_samples_per_rank = 3\nmax_samples_per_rank = 2\n')
    with pytest.raises(ValueError, match=rf"step.toml.{rank}: .*min_samples_per_rank"):
        Dispatcher.from_step(f"{path}.{rank}")
    with open(f"{path}.{rank}", "w") as file:
        file.write(f"ranks = {size + 1}\n")
    with pytest.raises(ValueError, match=f"ranks must be {size}, those of the group, got {size + 1}"):
        Dispatcher.from_step(f"{path}.{rank}")


def of_a_step_file_with_a_layout(rank, path):
    """The layout that a step file names is the dispatcher's: GPUs are split as it says."""
    size = torch.distributed.get_world_size()
    layouts = {"vision": ModuleLayout(dp=size), "llm": ModuleLayout(tp=size)}
    with open(f"{path}.{rank}.json", "w") as file:
        json.dump(StepLayout(layouts, mode="before").to_json(), file)
    with open(f"{path}.{rank}", "w") as file:
        file.write(f'layout = "{path}.{rank}.json"\n')
        file.write('[[phase]]\nname = "vision"\nlength = "images"\n[[phase]]\nname = "llm"\nlength = "tokens"\n')
    made = Dispatcher.from_step(f"{path}.{rank}")
    same = Dispatcher(phases={"vision": "images", "llm": "tokens"}, layouts=layouts)
    lengths = {"images": [3, 1], "tokens": [5, 4]}
    one, other = (each.dispatch({"id": [0, 1]}, lengths).step for each in (made, same))
    assert one.digest() == other.digest()
    assert one.setup.layout == other.setup.layout is not None


def keeps_together(rank):
    out = dispatcher(length="tokens", keep_together="prompt").dispatch(
        {"prompt": [(rank + i) % 5 for i in range(6)]},
        {"tokens": [3] * 6, "prompt": [(rank + i) % 5 for i in range(6)]},
    )
    return sorted(set(out["prompt"]))


# Phases: images as several items a sample, audio as at most one, text in between.

PHASES = (
    Phase("vision", "pixels", outputs="tokens_of_image"),
    Phase("audio", "mel"),
    Phase("llm", "total", own="text"),
)
FIELDS = {"pixels": "vision", "mel": "audio", "text": "llm:own"}
WIDTH = 5


def multimodal_batch(seed, rank, n):
    """Samples with 0 to 3 images (two pixels a token), audio or none, and text or none."""
    rng = np.random.default_rng([seed, rank])
    counts = rng.integers(0, 4, n)
    tokens = [rng.integers(1, 4, count).tolist() for count in counts]
    mel = rng.integers(0, 6, n) * rng.integers(0, 2, n)
    text = rng.integers(0, 7, n)
    fields = {
        "pixels": [[_values(rng, 2 * size, 4) for size in sizes] for sizes in tokens],
        "mel": [_values(rng, size, 3) for size in mel],
        "text": [torch.from_numpy(rng.integers(0, 11, size)) for size in text],
        "id": [f"{rank}.{i}" for i in range(n)],
    }
    total = [sum(sizes) + a + b for sizes, a, b in zip(tokens, mel.tolist(), text.tolist(), strict=True)]
    return fields, {"tokens_of_image": tokens, "total": total}


def _values(rng, rows, width):
    return torch.from_numpy(rng.standard_normal((int(rows), width))).double()


class Encoders(torch.nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.vision = torch.nn.Linear(8, WIDTH, dtype=dtype)
        self.audio = torch.nn.Linear(3, WIDTH, dtype=dtype)
        self.embed = torch.nn.Embedding(11, WIDTH, dtype=dtype)
        self.head = torch.nn.Linear(WIDTH, WIDTH, dtype=dtype)

    def images(self, pixels):
        """One token of two rows of pixels."""
        return self.vision(pixels.reshape(-1, 8))


def stacked(rows, width, dtype=torch.float64):
    return torch.cat(rows) if len(rows) else torch.empty((0, width), dtype=dtype)


def gradient(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def alone(model, batches):
    """Every sample's inputs and loss, computed without any exchange."""
    inputs = []
    for fields, _ in batches:
        for pixels, mel, text in zip(fields["pixels"], fields["mel"], fields["text"], strict=True):
            parts = [model.images(image) for image in pixels] + [model.audio(mel), model.embed(text)]
            inputs.append(torch.cat(parts))
    return inputs


def losses(model, rows, samples):
    """A loss that differs by sample and by place."""
    return [(model.head(row).sin() * torch.arange(1, row.numel() + 1).reshape(row.shape)).sum() * (sample + 1)
            for row, sample in zip(rows, samples, strict=True)]  # fmt: skip


def phases_agree_with_no_exchange(rank, seed, counts, arguments):
    """Inputs, loss and gradients of all parameters equal those of one process that holds everything."""
    batches = [multimodal_batch(seed, other, n) for other, n in enumerate(counts)]
    model = Encoders()
    wanted = alone(model, batches)
    sum(losses(model, wanted, range(len(wanted))), torch.zeros(())).backward()
    gradients = [gradient(parameter).clone() for parameter in model.parameters()]
    model.zero_grad()
    data, lengths = batches[rank] if counts[rank] else ({}, {})
    step = dispatcher(phases=PHASES, fields=FIELDS, **arguments).dispatch(data, lengths)
    _check_fields(step, batches)
    vision = model.images(stacked(step["pixels"], 4)) * 1
    audio = model.audio(stacked(step["mel"], 3))
    own = model.embed(torch.cat(step["text"]) if step["text"] else torch.empty(0, dtype=torch.int64))
    inputs = step.inputs("llm", {"vision": vision, "audio": audio}, own)
    rows = inputs.rows()
    assert len(rows) == len(step.samples)
    for row, sample in zip(rows, step.samples, strict=True):
        torch.testing.assert_close(row, wanted[sample], rtol=1e-12, atol=1e-12)
    from balancer.executor import anchored

    anchored(sum(losses(model, rows, step.samples.tolist()), torch.zeros(())), inputs.values).backward()
    for parameter, wanted_gradient in zip(model.parameters(), gradients, strict=True):
        mine = gradient(parameter)
        torch.distributed.all_reduce(mine)
        torch.testing.assert_close(mine, wanted_gradient, rtol=1e-9, atol=1e-9)
    home = step.restore()
    assert {name: plain(field) for name, field in home.items()} == {
        name: plain(field) for name, field in (batches[rank][0] if counts[rank] else batch_like(batches)).items()
    }
    return step.plan.digest()


def batch_like(batches):
    return {name: [] for name in batches[0][0]}


def _check_fields(step, batches):
    images = [image for fields, _ in batches for pixels in fields["pixels"] for image in pixels]
    audio = [mel for fields, _ in batches for mel in fields["mel"] if len(mel)]
    text = [piece for fields, _ in batches for piece in fields["text"]]
    names = [name for fields, _ in batches for name in fields["id"]]
    assert plain(step["pixels"]) == plain([images[i] for i in step.plan["vision"].samples_on_rank(step.rank)])
    assert plain(step["mel"]) == plain([audio[i] for i in step.plan["audio"].samples_on_rank(step.rank)])
    assert plain(step["text"]) == plain([text[i] for i in step.samples if len(text[i])])
    assert step["id"] == [names[i] for i in step.samples]
