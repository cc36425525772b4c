"""Steps made ahead by a thread: what comes, in which order, how it ends, and how it goes on."""

import os
import time
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from each_rank import each_rank, everywhere, raises_on, same_everywhere
from ranks_of import ranks_of

from balancer.executor import Dispatcher, ExecutorError, PrefetchDispatcher, prefetch

ranks = ranks_of(1, 3)


def uneven():
    """Sizes of mini-batches of loaders that end at different steps, the last ones short."""
    return [[4 - rank % 2] * (5 - rank) + [1] for rank in range(dist.get_world_size())]


def batches_of(rank, sizes):
    """Mini-batches of the given sizes; the first number of a sample says whose it is."""
    number = iter(range(10**6))
    return [
        {"ids": [torch.full((1 + (7 * rank + 3 * i) % 11,), 1000 * rank + next(number)) for i in range(size)]}
        for size in sizes
    ]


def names(step):
    return [int(row[0]) for row in step["ids"]]


def made(loader, **arguments):
    return PrefetchDispatcher(loader, Dispatcher(timeout=timedelta(seconds=20)), **arguments)


class Stateful:
    """A loader that knows where it is, as a StatefulDataLoader does."""

    def __init__(self, batches):
        self.batches, self.at = batches, 0

    def __iter__(self):
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


LOADERS = {"list": list, "stateful": Stateful, "torch": lambda batches: torch.utils.data.DataLoader(batches, None)}


@pytest.mark.parametrize(
    ("kind", "uneven_loaders"),
    [("stateful", "continue"), ("torch", "continue"), ("list", "stop")],
)
@each_rank
def test_every_sample_comes_once_until_loaders_have_ended(rank, kind, uneven_loaders):
    """Meanwhile this thread does collectives of its own; without overlap the same comes."""
    sizes, found = uneven(), []
    for overlap in (True, False):
        loader = made(LOADERS[kind](batches_of(rank, sizes[rank])), overlap=overlap, uneven=uneven_loaders)
        for _ in range(2):  # two epochs
            steps = []
            for step in loader:
                steps.append(names(step))
                home = loader.dispatcher.current.restore()
                dist.all_reduce(torch.tensor(len(home["ids"]) if home else 0))
                results = loader.dispatcher.current.restore(torch.tensor([float(name) for name in steps[-1]]))
                assert results.tolist() == [float(row[0]) for row in home.get("ids", [])]
        found.append(steps)
    assert found[0] == found[1]
    of_all = everywhere(steps)
    assert {len(of_rank) for of_rank in of_all} == {(max if uneven_loaders == "continue" else min)(map(len, sizes))}
    if uneven_loaders == "continue":
        seen = sorted(name for of_rank in of_all for step in of_rank for name in step)
        assert seen == [1000 * rank + i for rank, of_rank in enumerate(sizes) for i in range(sum(of_rank))]


@pytest.mark.parametrize(("kind", "at"), [("list", 1), ("stateful", 3), ("torch", 5)])
@each_rank
def test_resuming_is_exact(rank, kind, at):
    """What comes after a state is taken is what would have come."""

    def loader():
        return made(LOADERS[kind](batches_of(rank, uneven()[rank])), depth=2)

    whole, first, seen = [names(step) for step in loader()], loader(), []
    for step in first:
        seen.append(names(step))
        if len(seen) == at:
            state = first.state_dict()
            break
    assert (state["batches"], state["ranks"]) == (at, dist.get_world_size())
    again = loader()
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert seen + [names(step) for step in again] == whole
    assert [names(step) for step in again] == whole  # the next epoch is whole


class Drawn:
    """A loader that is a generator anew at each iteration."""

    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        return self.draw()


@each_rank
def test_the_next_step_is_made_meanwhile(rank):
    drawn = []

    def draw():
        for batch in batches_of(rank, [2] * 6):
            drawn.append(len(drawn))
            yield batch

    for number, _ in enumerate(made(Drawn(draw), depth=2)):
        until = time.monotonic() + 10
        while len(drawn) < min(6, number + 3) and time.monotonic() < until:
            time.sleep(0.01)
        assert len(drawn) >= min(6, number + 3)
        assert len(drawn) <= number + 5  # and not without end


@each_rank
def test_a_loop_that_all_leave_can_begin_again(rank):
    loader = made(batches_of(rank, [2] * 8))
    for number, _ in enumerate(loader):
        if number == 2:
            break
    assert [names(step) for step in loader] == [names(step) for step in made(batches_of(rank, [2] * 8))]
    for _ in zip(range(2), loader, strict=False):
        with pytest.raises(RuntimeError, match="one loop at a time"):
            next(iter(loader))
        with pytest.raises(RuntimeError, match="before iterating"):
            loader.load_state_dict(loader.state_dict())


@each_rank(sizes=(3,))
def test_a_rank_that_leaves_alone_is_named(rank):
    loader = iter(made(batches_of(rank, [2] * 20)))
    for _ in range(3):
        next(loader)
    if rank == 0:
        loader.close()
        return
    with pytest.raises(ExecutorError, match="rank 0 left the loop") as caught:
        list(loader)
    assert caught.value.ranks == (0,)


@each_rank
def test_a_loader_that_fails_is_an_error_on_all(rank):
    odd = dist.get_world_size() - 1

    def draw():
        yield from batches_of(rank, [2, 2])
        if rank == odd:
            raise OSError("the disk is gone")
        yield from batches_of(rank, [2] * 5)

    with raises_on([odd], OSError, "the disk is gone"):
        list(made(Drawn(draw)))


@each_rank
def test_overlap_is_refused_where_it_deadlocks(rank):
    with mock.patch.dict(os.environ, {prefetch.CONNECTIONS: "1"}):
        assert "deadlock" not in (prefetch.why_not_overlap(False) or "")
        assert "wait for a peer" in prefetch.why_not_overlap(True)
        with mock.patch.object(torch.cuda, "is_available", return_value=True):
            cuda = Dispatcher(device="cuda")
            with pytest.raises(RuntimeError, match=r"CUDA_DEVICE_MAX_CONNECTIONS=1 .* overlap=False"):
                PrefetchDispatcher([], cuda)
            PrefetchDispatcher([], cuda, overlap=False)
    assert prefetch.why_not_overlap(True) is None
    reads_for_all = type("DataLoaderDispatcher", (list,), {})
    with pytest.raises(RuntimeError, match=r"dispatch_batches=False.* or use overlap=False"):
        made(reads_for_all())
    assert list(made(reads_for_all(batches_of(rank, [2])), overlap=False))


@each_rank
def test_what_cannot_be_is_refused(rank):
    for arguments, text in (
        ({"uneven": "maybe"}, "uneven must be one of continue, stop"),
        ({"depth": 0}, "depth must"),
    ):
        with pytest.raises(ValueError, match=text):
            made([], **arguments)
    size, state = dist.get_world_size(), made([]).state_dict()
    for none in {"steps": 3}, None, {name: value for name, value in state.items() if name != "ended"}:
        with pytest.raises(ValueError, match=r"has no .*ended"):
            made([]).load_state_dict(none)
    what = rf"of {size + 1} ranks and there are {size}.*BalancedBatchSampler.*--continue"
    with pytest.raises(ValueError, match=what):
        made([]).load_state_dict(state | {"ranks": size + 1})
    with pytest.raises(ValueError, match="num_workers=2, here it has None"):
        made(Stateful([])).load_state_dict(state | {"batches": 2, "workers": 2, "loader": {"at": 2}})


# What trainers do to a loader.


class Shard(list):
    """A loader like Accelerate's: it has the methods of a state, but no state; and an epoch of its own."""

    def state_dict(self):
        return self.dl_state_dict

    def load_state_dict(self, state):
        raise NotImplementedError

    dataset = property(lambda self: [sample for batch in self for sample in batch["ids"]])


@each_rank
def test_what_comes_is_a_plain_dictionary_and_the_step_is_at_hand(rank):
    """A trainer rebuilds what it gets as ``type(data)({...})``."""
    loader = made(Shard(batches_of(rank, [3, 2])))
    assert loader.dispatcher.current is None
    for batch in loader:
        assert type(batch) is dict
        again = type(batch)({name: list(entry) for name, entry in batch.items()})
        step = loader.dispatcher.current
        assert names(again) == names(step)
        assert len(step.slot_bounds()) == 2
        assert len(step.restore()["ids"]) == [3, 2][loader.state_dict()["batches"] - 1]
    assert all(isinstance(batch, list) for batch in made([[torch.full((2,), rank)]]))  # the one field, as it came


@each_rank
def test_samples_are_collated_after_the_exchange(rank):
    def collate(samples):
        return sorted(int(sample["ids"][0]) for sample in samples), [sample["name"] for sample in samples]

    batches = [{**batch, "name": [str(int(row[0])) for row in batch["ids"]]} for batch in batches_of(rank, [3, 2])]
    for numbers, found in made(batches, columns=lambda b: {}, collate=collate):
        assert sorted(map(int, found)) == numbers


@each_rank
def test_the_length_is_that_of_the_loop(rank):
    mine, sizes = batches_of(rank, uneven()[rank]), list(map(len, uneven()))
    assert same_everywhere((len(made(mine)), len(made(mine, uneven="stop")))) == (max(sizes), min(sizes))
    with pytest.raises(TypeError, match="the loader of some rank has none"):
        len(made(iter(mine) if rank == 0 else mine))


@each_rank
def test_samplers_are_told_the_epoch_and_a_state_is_of_its_epoch(rank):
    """Samplers wherever they are, once each; a position in another epoch is dropped, one in the same is kept."""
    told = []

    class Sampler:
        def __init__(self, inner=None):
            self.batch_sampler = inner

        def set_epoch(self, epoch):
            told.append(epoch)

    loader = Shard(batches_of(rank, [2] * 4))
    loader.batch_sampler, loader.sampler = Sampler(Sampler()), Sampler()
    steps = made(loader)
    steps.sampler.set_epoch(3)  # as Lightning does
    assert told == [3] * 3
    for number, _ in enumerate(steps):
        if number == 1:
            state = steps.state_dict()
            break
    for epoch, left in ((3, 2), (4, 4)):
        steps.load_state_dict(state)
        steps.set_epoch(epoch)
        assert len(list(steps)) == left


@each_rank
def test_accelerate_may_not_end_an_accumulation_with_a_loader_that_is_ahead(rank):
    loader = Shard(batches_of(rank, [2]))
    for steps, with_loader in ((1, True), (2, False)):
        loader.gradient_state = SimpleNamespace(num_steps=steps, sync_with_dataloader=with_loader)
        assert len(list(made(loader))) == 1
    loader.gradient_state = SimpleNamespace(num_steps=2, sync_with_dataloader=True)
    with pytest.raises(ValueError, match=r"GradientAccumulationPlugin\(2, sync_with_dataloader=False\)"):
        made(loader)
