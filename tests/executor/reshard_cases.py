"""What GPUs do in tests of unlike layouts: a step of encoder and language model, beside the same in one process."""

from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

import balancer
from balancer import Phase, Ragged
from balancer.executor import Resharder, anchored

PHASES = (Phase("vision", "lengths(images)"), Phase("llm", "tokens"))
WIDTH, PATIENCE = 3, timedelta(seconds=15)


def tensor_groups(layouts, rank):
    """Of each phase the tensor group of this GPU; all GPUs make as many."""
    groups = {}
    for name, layout in layouts.items():
        if layout.tp > 1:
            (mine,) = [row for row in balancer.Mesh.of(layout).gpus.reshape(-1, layout.tp).tolist() if rank in row]
            groups[name] = dist.new_group(mine, use_local_synchronization=True)
    return groups


def batch_of(seed, samples):
    rng = np.random.default_rng(seed)
    images = [rng.integers(0, 12, rng.integers(0, 3)).tolist() for _ in range(samples)]
    tokens = np.array([sum(each) for each in images], dtype=np.int64) + rng.integers(0, 9, samples)
    return {"images": Ragged.of(images), "tokens": tokens}, rng.integers(0, dist.get_world_size(), samples)


def own_lengths(rank, seed, samples):
    """What one GPU says of its samples; nothing where it has none."""
    columns, home = batch_of(seed, samples)
    mine = np.flatnonzero(home == rank)
    return {"images": columns["images"].take(mine), "tokens": columns["tokens"][mine]} if len(mine) else {}


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
    sample, start = step.within("vision:out", "llm")
    lengths = step["vision"].lengths
    of, place = np.repeat(np.arange(len(lengths)), lengths), np.concatenate([np.arange(k) for k in lengths] or [[]])
    fed = raw(0, of, place) @ encoder
    own_sample, own_start = step.within("llm:own", "llm")
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
    """Item and place of each element of a GPU's packed slots, -1 for padding; nothing on later pipeline devices."""
    device, replica, _, _ = shards.mesh.place_of(gpu)
    if device > 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    items, places = [], []
    for slot in range(shards.num_slots):
        mine = shards.place.samples_on_rank(replica)
        mine = mine[shards.slot_of_item[mine] == slot]
        items.append(np.repeat(mine, shards.share[mine]))
        places.append(shards.positions(gpu, slot))
    return np.concatenate(items), np.concatenate(places)


def one_step(rank, layouts, seed, samples, frozen=False, slots=None):
    cut = {} if slots is None else {"micro_batch_tokens": 200, "num_micro_batches": slots, "allow_empty": True}
    groups = tensor_groups(layouts, rank)
    resharder = Resharder(PHASES, layouts, 4, tensor_groups=groups, timeout=PATIENCE, **cut)
    step = resharder.plan(own_lengths(rank, seed, samples))
    llm, vision = layouts["llm"], layouts["vision"]
    encoder, embedding, shards = weights(llm.tp)
    # Raw images come from home; what this GPU's replica of the encoder then has is what its layout says.
    mine = step.phases["vision"].items
    here = step.home.lifted(mine.sample_of_item).samples_on_rank(rank)
    place = np.concatenate([np.arange(k) for k in mine.lengths[here]] or [[]]).astype(int)
    arrived = resharder(step, "vision:in", raw(0, np.repeat(here, mine.lengths[here]), place), differentiable=False)
    item, at = held_of(resharder.of(step, "vision:in").target, rank)
    kept = at >= 0
    torch.testing.assert_close(arrived, raw(0, item, at) * torch.from_numpy(kept)[:, None])
    outputs = arrived @ encoder  # padding too, as a module does
    own_items = step.phases["llm"].items.own
    own_here = step.home.lifted(own_items.row_of_value).samples_on_rank(rank)
    own_of = np.repeat(own_here, own_items.values[own_here])
    own_place = np.concatenate([np.arange(k) for k in own_items.values[own_here]] or [[]])
    embedded = raw(1, own_of, own_place) @ embedding
    rows = {"vision:out": outputs.detach() if frozen else outputs, "llm:own": embedded}
    inputs = resharder(step, "llm:inputs", rows)
    sample, at = held_of(resharder.of(step, "llm:inputs").target, rank)
    tensor = resharder.of(step, "llm:inputs").target.mesh.place_of(rank)[3]
    real = torch.from_numpy(at >= 0)
    assert not inputs[~real].any()
    loss = loss_of(inputs[real], sample[at >= 0], at[at >= 0], shards[tensor])
    anchored(loss, inputs).backward()
    grads = [weight.grad if weight.grad is not None else torch.zeros_like(weight) for weight in (encoder, embedding)]
    grads[0] = grads[0] / vision.tp  # tensor replicas of the encoder have all of it
    summed = [loss.detach(), *grads]
    for value in summed:
        dist.all_reduce(value)
    expected = alone(step, llm.tp)
    for found, wanted, what in zip(summed, expected, ("loss", "encoder", "embedding"), strict=True):
        if what == "encoder" and frozen:
            assert not found.any()
        elif wanted is not None:
            torch.testing.assert_close(found, wanted, msg=lambda text, what=what: f"{what}: {text}")
    return len(inputs)


def wrong(rank, layouts, what):
    groups = tensor_groups(layouts, rank)
    if what == "group":
        groups = {"llm": dist.new_group([rank ^ 4, rank], use_local_synchronization=True)}
    resharder = Resharder(
        PHASES, layouts, 4, tensor_groups={} if what == "none" else groups, timeout=PATIENCE,
        eps=0.01 * rank if what == "settings" else 0.001,
    )  # fmt: skip
    lengths = own_lengths(rank, 0, 6)
    step = resharder.plan({"tokens": [3, -1]} if what == "lengths" else lengths)
    outputs = torch.zeros(int(resharder.of(step, "vision:out").stream.lengths.sum()) + (what == "rows"), WIDTH)
    size = step["vision"].lengths[step["vision"].target.samples_on_rank(rank)].sum() + (what == "rows")
    resharder(step, "vision:out", outputs[:size] if len(outputs) >= size else torch.zeros(int(size), WIDTH))
