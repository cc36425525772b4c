"""Unlike layouts on 8 processes: rows where they belong, losses and gradients those of one process."""

from datetime import timedelta

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from each_rank import each_rank, raises_on
from ranks_of import ranks_of

import balancer
from balancer import Mesh, ModuleLayout, Phase, Ragged
from balancer.cost import OnlineCost
from balancer.executor import Dispatcher, ExecutorError, PrefetchDispatcher, anchored
from balancer.layouts.step_plan import LaidOutStepPlan
from solvers.errors import UsageError

PHASES = (Phase("vision", "images"), Phase("llm", "tokens"))
FIELDS = {"pixels": "vision", "text": "llm:own"}
WIDTH, PATIENCE = 3, timedelta(seconds=15)
ALONE, SPLIT = ModuleLayout(dp=8), ModuleLayout(tp=2, cp=2, dp=2)

ranks = ranks_of(8)


def batch_of(seed, samples, size):
    rng = np.random.default_rng(seed)
    images = [rng.integers(0, 12, rng.integers(0, 3)).tolist() for _ in range(samples)]
    tokens = np.array([sum(each) for each in images], dtype=np.int64) + rng.integers(0, 9, samples)
    return {"images": Ragged.of(images), "tokens": tokens}, rng.integers(0, size, samples)


def handed_in(rank, seed, samples, size=8):
    """What one GPU hands in: fields and lengths, samples numbered rank after rank; nothing where it has none."""
    columns, home = batch_of(seed, samples, size)
    order = np.argsort(home, kind="stable")
    images, tokens = columns["images"].take(order), columns["tokens"][order]
    mine = range(*np.searchsorted(home[order], [rank, rank + 1]))
    if not mine:
        return {}, {}
    own = tokens - images.sums()
    text = np.cumsum(own > 0) - 1  # who has none has no piece
    fields = {
        "pixels": [
            [raw(0, item, np.arange(images.values[item])) for item in range(*images.offsets[s : s + 2])] for s in mine
        ],
        "text": [raw(1, text[s], np.arange(own[s])) for s in mine],
        "labels": [torch.arange(tokens[s]) + 1000 * s + 1 for s in mine],
        "mask": [torch.arange(tokens[s]) % 3 == 0 for s in mine],
        "halves": [torch.arange(2 * tokens[s]).view(-1, 2).to(torch.bfloat16) for s in mine],
        "nothing": [torch.empty((tokens[s], 2, 0)) for s in mine],
        "name": [f"sample {s}" for s in mine],
    }
    return fields, {"images": images.take(np.array(mine)), "tokens": tokens[list(mine)]}


def weights(tensor_shards):
    """The encoder's and the embedding's parameters, and what each tensor shard of the last module has."""
    generator = torch.Generator().manual_seed(5)
    made = (torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2 + tensor_shards))
    encoder, embedding, *shards = made
    return encoder.requires_grad_(), embedding.requires_grad_(), shards


def raw(kind, sample, place):
    """An element before the first module, known by its kind, sample and place: float64[k, WIDTH]."""
    angle = np.add.outer(np.asarray(sample) * 1.7 + np.asarray(place) * 0.3 + kind, np.arange(WIDTH))
    return torch.from_numpy(np.sin(angle))


def loss_of(values, sample, place, shard):
    """A loss of elements that depends on where they are, over one tensor shard."""
    where = torch.from_numpy(np.cos(np.asarray(sample) + 0.1 * np.asarray(place)))
    return (torch.tanh(values @ shard) * where[:, None]).sum()


def alone(step, tensor_shards):
    """The whole step in one process: its loss and gradients."""
    encoder, embedding, shards = weights(tensor_shards)
    sample, start = step.within("vision:out")
    lengths = step["vision"].lengths
    of, place = np.repeat(np.arange(len(lengths)), lengths), np.concatenate([np.arange(k) for k in lengths] or [[]])
    fed = raw(0, of, place) @ encoder
    own_sample, own_start = step.within("llm:own")
    own = step.phases["llm"].items.own.values
    own_place = np.concatenate([np.arange(k) for k in own] or [[]])
    own_of = np.repeat(np.arange(len(own)), own)
    embedded = raw(1, own_of, own_place) @ embedding
    values = torch.cat([fed, embedded])
    at = np.concatenate([start[of] + place, own_start[own_of] + own_place])
    samples = np.concatenate([sample[of], own_sample[own_of]])
    loss = sum(loss_of(values, samples, at, shard) for shard in shards)
    loss.backward()
    return loss.detach(), encoder.grad, embedding.grad


def held_of(shards, gpu):
    """Item and place of each element of a GPU's packed slots, -1 for padding."""
    _, replica, _, _ = shards.mesh.place_of(gpu)
    items, places = [], []
    for slot in range(shards.num_slots):
        mine = shards.place.samples_on_rank(replica)
        mine = mine[shards.slot_of_item[mine] == slot]
        items.append(np.repeat(mine, shards.share[mine]))
        places.append(shards.positions(gpu, slot))
    return np.concatenate(items), np.concatenate(places)


def whole(rows, like):
    return torch.cat([like, *rows])


def one_step(rank, layouts, seed, samples, frozen=False, slots=None, group=None):
    cut = {} if slots is None else {"cut": balancer.MicroBatches(200, count=slots, allow_empty=True)}
    made = Dispatcher(group, 4, PHASES, fields=FIELDS, layouts=layouts, timeout=PATIENCE, **cut)
    fields, lengths = handed_in(rank, seed, samples, dist.get_world_size(group))
    out = made.dispatch(fields, lengths)
    last = out.shards()
    encoder, embedding, shards = weights(last.mesh.layout.tp)
    arrived = check_fields(out, rank)
    outputs = arrived @ encoder  # padding too, as a module does
    nothing = torch.empty((0, WIDTH), dtype=torch.float64)
    embedded = whole(out["text"], nothing) @ embedding
    inputs = out.inputs("llm", {"vision": outputs.detach() if frozen else outputs}, embedded)
    device, _, _, tensor = last.mesh.place_of(rank)
    sample, at = held_of(last, rank) if device == 0 else np.empty((2, 0), dtype=int)
    assert inputs.lengths.tolist() == (out.lengths().tolist() if device == 0 else [])
    real = torch.from_numpy(at >= 0)
    assert not inputs.values[~real].any()
    loss = loss_of(inputs.values[real], sample[at >= 0], at[at >= 0], shards[tensor])
    anchored(loss, inputs.values).backward()
    grads = [weight.grad if weight.grad is not None else torch.zeros_like(weight) for weight in (encoder, embedding)]
    grads[0] = grads[0] / out.shards("vision").mesh.layout.tp  # tensor replicas of the encoder have all of it
    summed = [loss.detach(), *grads]
    for value in summed:
        dist.all_reduce(value, group=group)
    expected = alone(out.step, last.mesh.layout.tp)
    for found, wanted, what in zip(summed, expected, ("loss", "encoder", "embedding"), strict=True):
        if what == "encoder" and frozen:
            assert not found.any()
        elif wanted is not None:
            torch.testing.assert_close(found, wanted, msg=lambda text, what=what: f"{what}: {text}")
    check_home(out, fields, lengths)


@pytest.mark.parametrize(
    ("vision", "llm"),
    [
        (ALONE, SPLIT),
        (SPLIT, ALONE),
        (ModuleLayout(tp=2, dp=4), ModuleLayout(tp=2, sp=2, pp=2)),
        (ModuleLayout(sp=2, dp=4), ModuleLayout(tp=4, dp=2)),
    ],
)
@pytest.mark.parametrize(("samples", "slots"), [(13, None), (2, None), (9, 2)])
@each_rank
def test_as_in_one_process(rank, vision, llm, samples, slots):
    one_step(rank, {"vision": vision, "llm": llm}, 1, samples, slots=slots)


@each_rank
def test_frozen_encoders_and_gpus_numbered_otherwise(rank):
    vision = ModuleLayout(tp=2, dp=4)
    one_step(rank, {"vision": vision, "llm": SPLIT}, 2, 11, frozen=True)
    turned = Mesh.of(SPLIT, np.arange(8).reshape(1, 2, 2, 2).transpose(0, 3, 2, 1))
    one_step(rank, {"vision": vision, "llm": turned}, 3, 11)


@pytest.mark.parametrize(
    ("vision", "llm"),
    [(ModuleLayout(dp=4), ModuleLayout(tp=2, cp=2)), (ModuleLayout(tp=2, sp=2), ModuleLayout(dp=2, cp=2))],
)
@each_rank
def test_meshes_of_four(rank, vision, llm):
    """In two groups of four processes each."""
    group = dist.new_group([rank // 4 * 4 + place for place in range(4)], use_local_synchronization=True)
    one_step(rank % 4, {"vision": vision, "llm": llm}, 4, 7, group=group)


@each_rank
def test_the_next_step_is_made_meanwhile(rank):
    """The next step is dispatched by a thread while this one's inputs are exchanged, in the same tensor groups."""
    layouts = {"vision": ModuleLayout(tp=2, dp=4), "llm": SPLIT}
    made = Dispatcher(None, 4, PHASES, fields=FIELDS, layouts=layouts, timeout=PATIENCE)
    loader = [handed_in(rank, seed, 9) for seed in range(3)]
    named = [fields | {"lengths": lengths} for fields, lengths in loader]
    steps = PrefetchDispatcher([dict(one) for one in named], made, columns=lambda batch: batch.pop("lengths"))
    count = 0
    for _ in steps:
        out = made.current
        outputs = check_fields(out, rank)
        own = whole(out["text"], torch.empty((0, WIDTH), dtype=torch.float64))
        inputs = out.inputs("llm", {"vision": outputs}, own).values
        _, at = held_of(out.shards(), rank)
        assert torch.equal(inputs.abs().sum(1) > 0, torch.from_numpy(at >= 0))
        anchored(inputs.sum(), inputs).backward()
        count += 1
    assert count == 3


@each_rank
def test_costs_that_follow_what_replicas_take(rank):
    """A GPU's time is that of its replica's whole items; one rank plans for all."""
    layouts = {"vision": ALONE, "llm": SPLIT}
    online = OnlineCost(0.0, 1e-4, 1e-8)
    made = Dispatcher(
        None, 4, PHASES, fields=FIELDS, layouts=layouts, timeout=PATIENCE, cost={"llm": online}, planning="broadcast"
    )
    out = made.dispatch(*handed_in(rank, 1, 13))
    check_fields(out, rank)
    made.observe({"llm": 2.0})
    plan, replica = out.step["llm"], out.shards().mesh.place_of(rank)[1]
    lengths = plan.lengths[plan.samples_on_rank(replica)]
    assert made._correction.message()["observed"] == [[0, lengths.sum(), (lengths**2).sum(), 2.0]]
    made.observe({"llm": 2.0})
    again = made.dispatch(*handed_in(rank, 2, 13))
    check_fields(again, rank)
    assert isinstance(again.step, LaidOutStepPlan)


def check_fields(out, rank):
    """What a GPU has of each field is what its shards say; return its packed images."""
    item, at = held_of(out.shards("vision"), rank)
    arrived = whole(out["pixels"], torch.empty((0, WIDTH), dtype=torch.float64))
    torch.testing.assert_close(arrived, raw(0, item, at) * torch.from_numpy(at >= 0)[:, None])
    assert [len(row) for row in out["pixels"]] == out.lengths("vision").tolist()
    sample, at = held_of(out.shards(), rank)
    labels = whole(out["labels"], torch.empty(0, dtype=torch.int64))
    assert labels.tolist() == np.where(at >= 0, 1000 * sample + at + 1, 0).tolist()
    assert whole(out["mask"], torch.empty(0, dtype=torch.bool)).tolist() == ((at >= 0) & (at % 3 == 0)).tolist()
    halves = whole(out["halves"], torch.empty((0, 2), dtype=torch.bfloat16))
    assert halves.tolist() == np.where(at >= 0, [2 * at, 2 * at + 1], 0).T.tolist()
    assert [tuple(row.shape) for row in out["nothing"]] == [(size, 2, 0) for size in out.lengths()]
    assert out["name"] == [f"sample {s}" for s in out.samples]
    shards, bounds = out.shards(), [out.cu_seqlens(slot) for slot in range(out.step.num_slots)]
    assert [one.tolist() for one in bounds] == [shards.cu_seqlens(rank, s).tolist() for s in range(len(bounds))]
    return arrived


def check_home(out, fields, lengths):
    """Fields come home as they were, and what was computed of them."""
    home = out.restore()
    results = out.restore({"twice": [2 * row for row in out["labels"]], "name": [f"of {name}" for name in out["name"]]})
    squares = out.restore({"squares": [row**2 for row in out["pixels"]]}, phase="vision")["squares"]
    if not lengths:
        assert not any(len(home[name]) for name in home)
        return
    assert home["name"] == fields["name"]
    assert results["name"] == [f"of {name}" for name in fields["name"]]
    for name in ("text", "labels", "mask", "halves", "nothing"):
        assert all(torch.equal(*pair) for pair in zip(home[name], fields[name], strict=True)), name
    assert all(torch.equal(a, 2 * b) for a, b in zip(results["twice"], fields["labels"], strict=True))
    images = [image for images in fields["pixels"] for image in images]
    assert all(torch.equal(a, b) for a, b in zip([i for s in home["pixels"] for i in s], images, strict=True))
    assert all(torch.equal(a, b**2) for a, b in zip(squares, images, strict=True))


@each_rank
def test_what_does_not_fit_is_refused(rank):
    layouts, odd = {"vision": ALONE, "llm": SPLIT}, {"vision": ModuleLayout(dp=4, tp=2), "llm": SPLIT}
    arguments = {"fields": FIELDS, "timeout": PATIENCE}
    with raises_on([3], ExecutorError, "setting 'eps'"):
        Dispatcher(None, 4, PHASES, layouts=layouts, eps=0.01 if rank == 3 else 0.001, **arguments)
    with raises_on([3], ExecutorError, "setting 'layouts'"):
        Dispatcher(None, 4, PHASES, layouts=odd if rank == 3 else layouts, **arguments)
    made = Dispatcher(None, 4, PHASES, layouts=layouts, **arguments)
    with pytest.raises(UsageError, match="must be >= 0, got -1"):
        made.dispatch({}, {"tokens": [3, -1]})
    out = made.dispatch(*handed_in(rank, 0, 6))
    outputs, own = (torch.zeros(size, WIDTH) for size in (out.lengths("vision").sum() + 1, sum(map(len, out["text"]))))
    with pytest.raises(ValueError, match=r"outputs\['vision'\] must have "):
        out.inputs("llm", {"vision": outputs}, own)
