"""docs/how_to/data_loader.md: every block about the sampler and about packing runs as it stands."""

import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
for package in ("accelerate", "datasets", "lightning", "torchdata", "transformers"):
    if not find_spec(package):
        pytest.skip(f"{package} is not installed", allow_module_level=True)

from doc_blocks import blocks  # noqa: E402
from launched import launch, torchrun  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from balancer.compat import BalancedBatchSampler, verl  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "data_loader.md"
OURS = [heading for heading in blocks(PAGE) if heading.startswith(("Two lines", "Sampler:", "Packing:"))]
LAUNCHED = {"Sampler: Hugging Face Trainer", "Sampler: Accelerate", "Sampler: Lightning"}


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
    assert tried | LAUNCHED == set(OURS)


def test_trainers_run_their_blocks(tmp_path):
    assert launch("page_run.py", PAGE, tmp_path) == 0


@pytest.mark.nightly
def test_trainers_run_their_blocks_by_the_command(tmp_path):
    torchrun("page_run.py", PAGE, tmp_path)


def test_two_lines():
    """tried: Two lines: `BalancedBatchSampler`"""
    found = run("Two lines: `BalancedBatchSampler`")
    wanted = []
    for epoch in range(2):
        found["batches"].set_epoch(epoch)
        wanted.extend(found["batches"])
    assert found["seen"] == wanted


def test_resuming():
    """tried: Sampler: resuming"""
    from torchdata.stateful_dataloader import StatefulDataLoader

    batches = known()["batches"]
    batches.set_epoch(1)
    loader = StatefulDataLoader(list(range(24)), batch_sampler=batches, collate_fn=list, num_workers=2)
    whole, running = list(loader), iter(loader)
    first = [next(running) for _ in range(3)]
    found = run("Sampler: resuming", checkpoint=loader.state_dict())
    assert first + found["seen"] == whole


def test_from_a_plan_file(tmp_path, monkeypatch):
    """tried: Sampler: from a plan file"""
    from balancer.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("tokens\n" + "\n".join(str(n) for n in known()["lengths"]))
    shape = ["--ranks", "2", "--batch-per-rank", "2", "--epochs", "3", "--shuffle", "1", "--out", "plan.parquet"]
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "log.csv", *shape])
    found = run("Sampler: from a plan file")
    assert list(found["loader"]) == list(found["batches"])
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
    schedule.DpBalancedScheduler, schedule.scheduler_map = stock, {"dp_balanced": stock}
    modules(monkeypatch, schedule)
    run("Packing: Megatron-core and Megatron-Bridge")
    assert schedule.scheduler_map["dp_balanced"].__name__ == "BalancedPackingScheduler"


def test_verl(monkeypatch):
    """tried: Packing: verl"""
    theirs = types.ModuleType("verl.utils.seqlen_balancing")
    for name in verl._REPLACED:
        setattr(theirs, name, object())
    modules(monkeypatch, theirs)
    run("Packing: verl")
    assert theirs.get_reverse_idx is verl.get_reverse_idx


def test_grid():
    """tried: Packing: torchtitan, VeOmni"""
    grid = run("Packing: torchtitan, VeOmni")["grid"]
    assert sorted(sample for slot in grid for cell in slot for sample in cell) == list(range(24))
