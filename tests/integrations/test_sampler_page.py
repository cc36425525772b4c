"""docs/how_to/sampler.md: every block about the sampler and about packing runs as it stands."""

import contextlib
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for package in ("accelerate", "datasets", "lightning", "torchdata", "transformers"):
    if not find_spec(package):
        pytest.skip(f"{package} is not installed", allow_module_level=True)

from doc_blocks import blocks  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from balancer.compat import BalancedBatchSampler, BalancedStream  # noqa: E402
from balancer.compat.megatron import BalancedPackingScheduler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "sampler.md"
OURS = [heading for heading in blocks(PAGE) if heading.startswith(("`", "Sampler:", "Packing:"))]
ELSEWHERE = {  # in test_sampler_trainers and test_sampler_huggingface
    "Sampler: gradient accumulation", "Sampler: Accelerate", "Sampler: Lightning", "Sampler: Hugging Face Trainer",
}  # fmt: skip


def known(**more):
    lengths = [5, 9, 2, 40, 7, 7, 1, 3] * 3
    batches = BalancedBatchSampler(lengths, 2, 2, 1)
    return {
        "lengths": lengths, "dataset": list(range(24)), "batch_size": 2, "num_replicas": 2, "rank": 1, "epochs": 2,
        "epoch": 1, "collate": list, "DataLoader": DataLoader, "batches": batches, "seen": [],
        "BalancedBatchSampler": BalancedBatchSampler,
    } | more  # fmt: skip


def run(heading, **more):
    found = known(**more)
    found["train"] = found["seen"].append
    exec("\n".join(blocks(PAGE)[heading]), found)
    return found


def test_no_block_is_left_out():
    tried = {
        name.removeprefix("tried: ")
        for test in list(globals())
        if (name := globals()[test].__doc__ or "").startswith("tried: ")
    }
    assert tried | ELSEWHERE == set(OURS)


@pytest.mark.parametrize("page", [PAGE, PAGE.parents[2] / "README.md"])
def test_the_diff_of_a_loop(page):
    """Both begin with it; on one process, where it changes nothing but the order of samples."""
    lines = page.read_text().partition("```diff\n")[2].partition("```")[0].splitlines()
    lengths, seen = known()["lengths"], []

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(0.0))

        def forward(self, labels):
            seen.extend(labels[:, 0].tolist())
            return types.SimpleNamespace(loss=(self.weight - labels[:, 1:]).square().mean())

    def collate(rows):
        return {"labels": torch.tensor(rows)[:, None].expand(len(rows), 3).float()}

    with torch_ranks() as dist:
        for mark in "-+":
            model = Model()
            given = {"DataLoader": DataLoader, "DistributedSampler": torch.utils.data.DistributedSampler,
                     "dataset": list(range(24)), "lengths": lengths, "batch_size": 2, "collate": collate, "epochs": 2,
                     "model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "dist": dist}  # fmt: skip
            exec("\n".join(line[1:] for line in lines if line[:1] in ("", " ", mark)), given)
    assert len(seen) == 4 * 24
    epochs = [seen[24 * i : 24 * i + 24] for i in range(4)]
    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert epochs[2] != epochs[3]


@contextlib.contextmanager
def torch_ranks():
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield dist
    finally:
        dist.destroy_process_group()


def test_an_order():
    """tried: `order`: whose epoch it is"""
    rows = {"web_rows": np.arange(2000), "code_rows": np.arange(2000, 2600)}
    found = run("`order`: whose epoch it is", np=np, **rows | {"lengths": np.arange(1, 2601), "batch_size": 4})
    for step in found["batches"].plan():
        assert sum(row >= 2000 for (slot,) in [step] for batch in slot for row in batch) == 2


def test_phases():
    """tried: `cost`: what is even"""
    costs = {name: np.random.default_rng(seed).integers(1, 90, 24) for seed, name in enumerate(["vision", "llm"])}
    found = run("`cost`: what is even", np=np, vision_flops=costs["vision"], llm_flops=costs["llm"])
    assert found["batches"].report().planned.worked == costs["vision"].sum() + costs["llm"].sum()


def test_limits():
    """tried: `limits`: what a micro-batch may hold"""
    images = np.arange(24) % 4
    found = run("`limits`: what a micro-batch may hold", images=images)
    for step in found["batches"].plan():
        for slot in step:
            assert len({images[batch].any() for batch in slot}) == 1


def test_steps_of_free_size():
    """tried: `batch_size=None`: steps as large as fit"""
    found = run("`batch_size=None`: steps as large as fit")
    assert found["steps"] == len(list(found["batches"].plan())) == 1


def test_resuming():
    """tried: Sampler: resuming"""
    made = BalancedBatchSampler(known()["lengths"], 2, 2, 1, gradient_accumulation_steps=4)
    whole, saved = [*made, *made], []
    steps = [tuple(whole[i : i + 4]) for i in range(0, 16, 4)]
    assert run("Sampler: resuming", checkpoint=None, save=saved.append)["seen"] == steps
    assert run("Sampler: resuming", checkpoint=saved[0], save=repr)["seen"] == steps[1:]
    within = BalancedBatchSampler(known()["lengths"], 2, 2, 1, gradient_accumulation_steps=4).state_dict(batches=6)
    with pytest.warns(UserWarning, match="after 2 of its micro-steps"):
        again = run("Sampler: resuming", checkpoint={"batches": within}, save=saved.append)["seen"]
    assert again == steps[1:], "steps of the loop are those of the sampler"
    assert [state["batches"]["begun"] for state in saved] == [0] * 7
    other = BalancedBatchSampler(known()["lengths"], 2, 2, 1, gradient_accumulation_steps=3).state_dict(batches=4)
    with pytest.warns(UserWarning, match="after 1 of its micro-steps"):
        run("Sampler: resuming", checkpoint={"batches": other}, save=saved.append)
    assert [state["batches"]["begun"] for state in saved] == [0] * 10, "though 4 is no end of a step here"


def streamed(heading, **more):
    """Run the block of a stream to its end, and again from what it saved behind the fifth batch."""
    samples, saved = [{"input_ids": [row] * length} for row, length in enumerate(known()["lengths"])], []
    given = {"samples": samples, "BalancedStream": BalancedStream} | more
    whole = run(heading, **given, checkpoint=None, save=saved.append)["seen"]
    if more:  # a state that the block does not load
        given["BalancedStream"] = lambda *of: loaded(BalancedStream(*of), saved[4]["stream"])
    return whole, run(heading, **given, checkpoint=saved[4], save=repr)["seen"]


def loaded(stream, state):
    stream.load_state_dict(state)
    return stream


def test_a_stream():
    """tried: Sampler: a stream"""
    whole, rest = streamed("Sampler: a stream")
    assert len(whole) == 12, "two epochs"
    assert rest == whole[5:]


class IterDataset:
    """Grain's, as far as the block knows it."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return DatasetIterator(self.samples)


class DatasetIterator:
    def __init__(self, samples):
        self.samples, self.next = samples, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == len(self.samples):
            raise StopIteration
        self.next += 1
        return self.samples[self.next - 1]

    def get_state(self):
        return {"next": self.next}

    def set_state(self, state):
        self.next = state["next"]


def test_a_grain_stream():
    """tried: Sampler: a Grain stream"""
    dataset = IterDataset([{"input_ids": [row] * length} for row, length in enumerate(known()["lengths"])])
    whole, rest = streamed("Sampler: a Grain stream", dataset=dataset)
    assert len(whole) == 6
    assert rest == whole[5:]


def test_from_a_plan_file(tmp_path, monkeypatch):
    """tried: Sampler: from a plan file"""
    from balancer.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("tokens\n" + "\n".join(str(n) for n in known()["lengths"]))
    shape = [
        "--ranks",
        "2",
        "--batch-per-rank",
        "2",
        "--set",
        "epochs=3",
        "--set",
        "shuffle=1",
        "--out",
        "plan.parquet",
    ]
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "log.csv", *shape])
    found = run("Sampler: from a plan file")
    first = list(found["loader"])
    found["batches"].set_epoch(1)  # as the block did
    assert first == list(found["batches"])
    assert len(found["loader"]) == 6


def modules(monkeypatch, last):
    """Put a module, and those above it, where imports find them."""
    names = last.__name__.split(".")
    for end in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), types.ModuleType(".".join(names[:end])))
    setattr(sys.modules[".".join(names[:-1])], names[-1], last)
    monkeypatch.setitem(sys.modules, last.__name__, last)


def test_megatron(monkeypatch):
    """tried: Packing: Megatron-core and Megatron-Bridge"""
    stock = type("DpBalancedScheduler", (), {})
    schedule = types.ModuleType("megatron.core.datasets.data_schedule")
    schedule.scheduler_map = {"dp_balanced": stock}
    modules(monkeypatch, schedule)
    run("Packing: Megatron-core and Megatron-Bridge")
    assert schedule.scheduler_map["dp_balanced"].__mro__[1:3] == (BalancedPackingScheduler, stock)


def test_verl():
    """tried: Packing: verl"""
    assert run("Packing: verl")["get_seqlen_balanced_partitions"]([3, 1, 2], 2, False) == [[0], [1, 2]]


def test_grid():
    """tried: Packing: torchtitan, VeOmni"""
    grid = run("Packing: torchtitan, VeOmni")["grid"]
    assert sorted(sample for slot in grid for cell in slot for sample in cell) == list(range(24))
