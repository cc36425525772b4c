"""What ranks do in tests of prefetching: loaders of unequal lengths, loops that are left and that are resumed."""

import os
import time
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from balancer.executor import Dispatcher, PrefetchDispatcher, prefetch

TIMEOUT = timedelta(seconds=20)


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
    return PrefetchDispatcher(loader, Dispatcher(timeout=TIMEOUT), **arguments)


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


def runs(rank, sizes, kind, arguments):
    """Steps go on until all loaders have ended; meanwhile this thread does collectives of its own."""
    loader = made(LOADERS[kind](batches_of(rank, sizes[rank])), **arguments)
    for _ in range(2):  # two epochs
        steps = []
        for step in loader:
            steps.append(names(step))
            home = loader.dispatcher.current.restore()
            count = torch.tensor(len(home["ids"]) if home else 0)
            dist.all_reduce(count)
            results = loader.dispatcher.current.restore(torch.tensor([float(name) for name in steps[-1]]))
            assert results.tolist() == [float(row[0]) for row in home.get("ids", [])]
    return steps


def resumes(rank, sizes, kind, at, arguments):
    """What comes after a state is taken is what would have come."""
    whole = [names(step) for step in made(LOADERS[kind](batches_of(rank, sizes[rank])), **arguments)]
    first, state = made(LOADERS[kind](batches_of(rank, sizes[rank])), **arguments), None
    seen = []
    for step in first:
        seen.append(names(step))
        if len(seen) == at:
            state = first.state_dict()
            break
    assert (state["batches"], state["ranks"]) == (at, dist.get_world_size())
    again = made(LOADERS[kind](batches_of(rank, sizes[rank])), **arguments)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert seen + [names(step) for step in again] == whole
    assert [names(step) for step in again] == whole  # the next epoch is whole
    return len(whole)


def runs_ahead(rank):
    """The next step is made while this one computes, without this thread asking for it."""
    drawn = []
    batches = batches_of(rank, [2] * 6)

    def drawing():
        for batch in batches:
            drawn.append(len(drawn))
            yield batch

    class Loader:
        def __iter__(self):
            return drawing()

    for number, _ in enumerate(made(Loader(), depth=2)):
        until = time.monotonic() + 10
        while len(drawn) < min(6, number + 3) and time.monotonic() < until:
            time.sleep(0.01)
        assert len(drawn) >= min(6, number + 3)
        assert len(drawn) <= number + 5  # and not without end


def leaves(rank, together):
    """All leave at one step, and begin again; or one alone does, of whom the others hear."""
    loader = made(batches_of(rank, [2] * 20))
    for number, _ in enumerate(loader):
        if number == 2 and (together or rank == 0):
            break
    if not together:
        return None
    return [names(step) for step in loader] == [names(step) for step in made(batches_of(rank, [2] * 20))]


def breaks(rank, odd):
    def drawing():
        yield from batches_of(rank, [2, 2])
        if rank == odd:
            raise OSError("the disk is gone")
        yield from batches_of(rank, [2] * 5)

    class Loader:
        def __iter__(self):
            return drawing()

    for _ in made(Loader()):
        pass


def refuses(rank):
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
    with pytest.raises(ValueError, match="uneven must be one of continue, stop"):
        made([], uneven="maybe")
    with pytest.raises(ValueError, match="depth must be >= 1"):
        made([], depth=0)
    size, state = dist.get_world_size(), made([]).state_dict()
    for none in {"steps": 3}, None, {name: value for name, value in state.items() if name != "ended"}:
        with pytest.raises(ValueError, match=r"has no .*ended"):
            made([]).load_state_dict(none)
    with pytest.raises(
        ValueError, match=rf"of {size + 1} ranks and there are {size}.*BalancedBatchSampler.*--continue"
    ):
        made([]).load_state_dict(state | {"ranks": size + 1})
    with pytest.raises(ValueError, match="num_workers=2, here it has None"):
        made(Stateful([])).load_state_dict(state | {"batches": 2, "workers": 2, "loader": {"at": 2}})


def one_loop_at_a_time(rank):
    loader = made(batches_of(rank, [1, 1, 1]))
    for _ in loader:
        with pytest.raises(RuntimeError, match="one loop at a time"):
            next(iter(loader))
        with pytest.raises(RuntimeError, match="before iterating"):
            loader.load_state_dict(loader.state_dict())


# What trainers do to a loader.


class Shard(list):
    """A loader like Accelerate's: it has the methods of a state, but no state; and an epoch of its own."""

    def state_dict(self):
        return self.dl_state_dict

    def load_state_dict(self, state):
        raise NotImplementedError

    dataset = property(lambda self: [sample for batch in self for sample in batch["ids"]])


def yields_plain_dictionaries(rank):
    """A trainer rebuilds what it gets as ``type(data)({...})``."""
    loader = made(Shard(batches_of(rank, [3, 2])))
    assert loader.dispatcher.current is None
    for batch in loader:
        assert type(batch) is dict
        again = type(batch)({name: list(entry) for name, entry in batch.items()})
        step = loader.dispatcher.current
        assert names(again) == names(step)
        assert len(step.slot_bounds()) == 2
        assert len(step.restore()["ids"]) == len(batches_of(rank, [3, 2])[loader.state_dict()["batches"] - 1]["ids"])
    assert all(isinstance(batch, list) for batch in made([[torch.full((2,), rank)]]))  # the one field, as it came


def collates(rank):
    def collate(samples):
        return sorted(int(sample["ids"][0]) for sample in samples), [sample["name"] for sample in samples]

    batches = [{**batch, "name": [str(int(row[0])) for row in batch["ids"]]} for batch in batches_of(rank, [3, 2])]
    for numbers, found in made(batches, columns=lambda b: {}, collate=collate):
        assert sorted(map(int, found)) == numbers


def lengths_are_told(rank, sizes):
    mine = batches_of(rank, sizes[rank])
    lengths = len(made(mine)), len(made(mine, uneven="stop"))
    with pytest.raises(TypeError, match="the loader of some rank has none"):
        len(made(iter(mine) if rank == 0 else mine))
    return lengths


def epochs_are_told(rank):
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


def refuses_to_end_an_accumulation_too_early(rank):
    loader = Shard(batches_of(rank, [2]))
    for steps, with_loader in ((1, True), (2, False)):
        loader.gradient_state = SimpleNamespace(num_steps=steps, sync_with_dataloader=with_loader)
        assert len(list(made(loader))) == 1
    loader.gradient_state = SimpleNamespace(num_steps=2, sync_with_dataloader=True)
    with pytest.raises(ValueError, match=r"GradientAccumulationPlugin\(2, sync_with_dataloader=False\)"):
        made(loader)
