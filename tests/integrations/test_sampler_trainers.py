"""DDP, FSDP2, Accelerate, Lightning, StatefulDataLoader: all of the sampler's batches, and the same training."""

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
if not (find_spec("accelerate") and find_spec("lightning")):  # ranks import them, which takes long
    pytest.skip("accelerate and lightning are not installed", allow_module_level=True)

from launched import launch  # noqa: E402

from balancer.compat import BalancedBatchSampler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # of the trainers, which are not ours


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainers")
    assert launch("samplers_run.py", folder) == 0
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(
    ("trainer", "wanted"),
    [("ddp", "step"), ("fsdp", "micro_batch"), ("accelerate", "samples"), ("lightning", "samples")],
)
def test_every_rank_runs_its_batches_and_learns_what_unbalanced_training_does(found, trainer, wanted):
    for of_rank in found:
        assert of_rank[trainer]["seen"] == of_rank[wanted]["seen"]
        assert len(of_rank[trainer]["seen"]) == 2 * 3 * 4  # two epochs of two steps and one of ten rows
        assert torch.allclose(of_rank[trainer]["weights"], of_rank[wanted]["weights"], rtol=1e-12, atol=1e-14)


def test_accelerate_refuses_a_ranks_batches(found):
    for of_rank in found:
        *of_a_rank, split = of_rank["accelerate"]["refused"]
        assert ["accelerator.prepare" in said and "rank='all'" in said for said in of_a_rank] == [True, True]
        assert "`split_batches==True`" in split
        assert of_rank["accelerate"]["planned"]


def test_lightning_refuses_to_put_its_own_sampler_in(found):
    assert all(
        "Lightning: Trainer(use_distributed_sampler=False)" in of_rank["lightning"]["refused"] for of_rank in found
    )


def test_ranks_that_differ_all_say_so(found):
    for rank, of_rank in enumerate(found):
        *said, own = of_rank["said"]
        assert own == f"2 {rank}"
        for text, name in zip(said, ("order", "settings", "cost"), strict=True):
            assert f"ranks begin epoch 0 with unlike {name}: that of rank 1 is not that of rank 0" in text
        assert "order=lambda epoch: numpy.random.default_rng([0, epoch])" in said[0]


@pytest.mark.parametrize(("workers", "done"), [(0, 4), (1, 3), (1, 11)])
def test_a_stateful_loader_resumes_with_the_step_that_was_not_ended(workers, done):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    rows = list(range(100))

    def made():
        batches = BalancedBatchSampler([row % 13 for row in rows], 2, 2, 1, gradient_accumulation_steps=2, window=2)
        batches.set_epoch(1)
        return stateful.StatefulDataLoader(rows, batch_sampler=batches, num_workers=workers, collate_fn=list)

    whole = list(made())
    first = made()
    running = iter(first)
    assert [next(running) for _ in range(done)] == whole[:done]
    state = first.state_dict()
    del running
    resumed = made()
    resumed.load_state_dict(state)
    resumed.batch_sampler.set_epoch(1)
    assert list(resumed) == whole[done // 2 * 2 :]
    assert len(list(resumed)) == len(whole), "the next epoch is whole"
