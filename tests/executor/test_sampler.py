"""From a plan to a loader: every rank reads what it runs, and all of them together read the log once."""

import json
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sampler_cases as cases  # noqa: E402
from rank_processes import Ranks  # noqa: E402

import balancer  # noqa: E402
from balancer.cli.main import main  # noqa: E402
from balancer.compat import PlannedBatchSampler  # noqa: E402
from balancer.offline.load import checked_steps  # noqa: E402


def made(seed, num_ranks=4, **arguments):
    return balancer.balance(np.random.default_rng(seed).integers(1, 50, 24), num_ranks, **arguments)


OWN = balancer.MicroBatches(40, over_long="own")
EMPTY = balancer.MicroBatches(999, count=9, allow_empty=True)
SHARED = balancer.SequenceGroups((2, 4), count=2, order="zigzag", pad_to=4)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"cut": OWN}, {"cut": EMPTY}, {"cut": SHARED}],
)
def test_plans_and_plan_files_give_the_same_rows(tmp_path, arguments):
    plan = made(1, **arguments)
    plan.save(tmp_path / "plan.parquet")
    for rank in range(4):
        sources = plan, [plan], tmp_path / "plan.parquet", str(tmp_path / "plan.parquet")
        rows = [list(PlannedBatchSampler(source, rank)) for source in sources]
        assert rows == [[plan.samples_on_rank(rank).tolist()]] * 4
        slots = [list(PlannedBatchSampler(source, rank, micro_batches=True)) for source in sources]
        assert slots == [[plan.samples_in_slot(rank, slot).tolist() for slot in range(plan.num_slots)]] * 4


@pytest.mark.parametrize("arguments", [{}, {"cut": OWN}])
def test_steps_follow_one_another(arguments):
    plans = [made(1, **arguments), made(2)]
    assert list(PlannedBatchSampler(plans, 2))[1] == (plans[1].samples_on_rank(2) + 24).tolist()
    assert list(PlannedBatchSampler(plans, 2, start_step=1)) == list(PlannedBatchSampler(plans, 2))[1:]
    assert len(PlannedBatchSampler(plans, 2, start_step=1)) == 1


def planned(folder, name, text, *arguments):
    """Return the plan file that the command writes of a log for ranks."""
    (folder / name).write_text(text)
    out = folder / "plan.parquet"
    with pytest.raises(SystemExit, match="0"):
        main(["plan", str(folder / name), *arguments, "--overwrite", "--out", str(out)])
    return out


def test_a_data_loader_reads_a_planned_log_once(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 90, 100)
    text = "tokens\n" + "\n".join(map(str, lengths))
    out = planned(tmp_path, "log.csv", text, "--ranks", "4", "--batch-per-rank", "8", "--length", "tokens")
    data = [(row, int(length)) for row, length in enumerate(lengths)]
    seen = []
    for rank in range(4):
        sampler = PlannedBatchSampler(out, rank)
        steps = list(torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=list))
        assert len(steps) == len(sampler) == 4
        seen.append(steps)
    for step, (start, stop) in enumerate(pairwise([0, 32, 64, 96, 100])):
        rows = sorted(row for steps in seen for row, _ in steps[step])
        assert rows == list(range(start, stop))


@pytest.mark.parametrize("most", [4, 9])
def test_all_phases_have_as_many_micro_batches_and_steps(tmp_path, most):
    """In the second step there is no image; in the first and third they are all in the first slot."""
    images = [[2], [3], [], [], [], [], [], [], [1], [1], [], []]
    rows = [{"images": found, "tokens": 3 + (row % 4 > 1)} for row, found in enumerate(images)]
    plan = planned(
        tmp_path, "log.jsonl", "\n".join(map(json.dumps, rows)), "--ranks", "2", "--batch-per-rank", "2", "--set",
        "phase.vision.length=images", "--set", "phase.llm.length=tokens", "--set", f"cut.tokens={most}",
    )  # fmt: skip
    steps = list(checked_steps(plan))
    for rank in range(2):
        found = {name: PlannedBatchSampler(plan, rank, name) for name in ("vision", "llm")}
        assert [len(list(one)) for one in found.values()] == [3, 3]
        assert list(found["vision"])[1] == []
        slots = [PlannedBatchSampler(plan, rank, name, micro_batches=True) for name in found]
        assert [len(list(one)) for one in slots] == [sum(step.num_slots for step in steps)] * 2
    with pytest.raises(balancer.InputError, match="has phases vision, llm; say which"):
        list(PlannedBatchSampler(plan, 0))


@pytest.mark.parametrize("micro_batches", [False, True])
def test_a_sampler_goes_on_where_its_state_says(tmp_path, micro_batches):
    text = "tokens\n" + "\n".join(map(str, np.random.default_rng(0).integers(1, 9, 40)))
    plan = planned(tmp_path, "log.csv", text, "--ranks", "2", "--batch-per-rank", "1", "--set", "cut.tokens=9")
    whole = list(PlannedBatchSampler(plan, 1, micro_batches=micro_batches))
    sampler = PlannedBatchSampler(plan, 1, micro_batches=micro_batches)
    running = iter(sampler)
    for _ in range(7):
        next(running)
    resumed = PlannedBatchSampler(plan, 1, micro_batches=micro_batches)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    resumed.set_epoch(0)
    assert list(resumed) == whole[7:]
    assert list(resumed) == whole, "the next epoch is the plan's only one again"
    resumed.set_epoch(0)
    from_step = PlannedBatchSampler(plan, 1, micro_batches=micro_batches, start_step=3)
    running = iter(from_step)
    rest = [next(running), next(running)]
    assert from_step.state_dict()["batches"] == 2, "counted from there"
    resumed.load_state_dict(from_step.state_dict())
    assert rest + list(resumed) == list(PlannedBatchSampler(plan, 1, micro_batches=micro_batches, start_step=3))
    resumed.load_state_dict(PlannedBatchSampler(plan, 1, micro_batches=micro_batches).state_dict(batches=7))
    assert list(resumed) == whole[7:]
    with pytest.raises(ValueError, match="its phase is"):
        PlannedBatchSampler(plan, 1, phase="all", micro_batches=micro_batches).load_state_dict(sampler.state_dict())


def test_within_a_step_of_micro_batches_it_is_begun_anew():
    plans = [made(seed, cut=balancer.MicroBatches(100)) for seed in range(3)]
    counts = [plan.num_slots for plan in plans]
    assert counts[1] > 1
    sampler = PlannedBatchSampler(plans, 1, micro_batches=True)
    whole = list(sampler)
    sampler.set_epoch(0)
    running = iter(sampler)
    for _ in range(counts[0] + 1):
        next(running)
    state = sampler.state_dict()
    assert state == PlannedBatchSampler(plans, 0, micro_batches=True).state_dict(batches=counts[0] + 1)
    assert (state["samples"], state["begun"], state["window"]) == (24, 1, None)
    for ranks in 4, 2:
        others = [made(seed, ranks, cut=balancer.MicroBatches(100)) for seed in range(3)]
        resumed = PlannedBatchSampler(others, 1, micro_batches=True)
        with pytest.warns(UserWarning, match="after 1 of its micro-steps; the step is begun anew"):
            resumed.load_state_dict(state)
        found = list(resumed)
        assert found == (whole[counts[0] :] if ranks == 4 else found)
        assert found[-1] == (others[2].samples_in_slot(1, others[2].num_slots - 1) + 48).tolist()
        assert len(found) == sum(plan.num_slots for plan in others[1:])


@pytest.mark.parametrize("arguments", [{}, {"cut": balancer.MicroBatches(100)}])
def test_all_ranks_in_turn_are_what_each_gets(tmp_path, arguments):
    plans = [made(seed, **arguments) for seed in range(3)]
    plans[0].save(tmp_path / "plan.parquet")
    for source in plans, tmp_path / "plan.parquet":
        found = [list(PlannedBatchSampler(source, rank, micro_batches=True)) for rank in range(4)]
        everything = list(PlannedBatchSampler(source, "all", micro_batches=True))
        assert [everything[rank::4] for rank in range(4)] == found
    assert len(PlannedBatchSampler(plans, "all")) == 12
    with pytest.raises(ValueError, match=r"rank 2's already.*rank='all'"):
        PlannedBatchSampler(plans, 2).batch_size  # noqa: B018


def test_errors_name_what_is_wrong(tmp_path):
    plan = made(1)
    with pytest.raises(ValueError, match=r'rank must be within 0\.\.3, or "all", got 4'):
        PlannedBatchSampler(plan, 4)
    with pytest.raises(ValueError, match="start_step must be >= 0, got -1"):
        PlannedBatchSampler(plan, 0, start_step=-1)
    with pytest.raises(ValueError, match="start_step must be <= 1, the steps of an epoch, got 2"):
        PlannedBatchSampler(plan, 0, start_step=2)
    with pytest.raises(ValueError, match=r"plan\[1\] must have 4 ranks, as the first has, got 3"):
        PlannedBatchSampler([plan, made(1, 3)], 0)
    for odd in None, 5, [1, 2], [], [plan, None]:
        with pytest.raises(TypeError, match="plan must be a path, a DispatchPlan, or one or more of these"):
            PlannedBatchSampler(odd, 0)
    for rank in "x", None:
        with pytest.raises(ValueError, match=r'rank must be within 0\.\.3, or "all"'):
            PlannedBatchSampler(plan, rank)
    with pytest.raises(ValueError, match="phase must be left out: a DispatchPlan is of one, got 'x'"):
        PlannedBatchSampler(plan, 0, phase="x")
    with pytest.raises(TypeError, match="known only by reading"):
        len(PlannedBatchSampler(plan, 0, micro_batches=True))
    plan.save(tmp_path / "plan.parquet")
    with pytest.raises(balancer.InputError, match="has no phase 'llm'; there are all"):
        list(PlannedBatchSampler(tmp_path / "plan.parquet", 0, phase="llm"))
    with pytest.raises(balancer.InputError):
        PlannedBatchSampler(tmp_path / "nothing.parquet", 0)


def test_an_encoder_whose_items_ranks_share_has_slots_of_its_own(tmp_path):
    images = balancer.Ragged.of([[400, 3], [3], [5, 9], [2], [8], [60], [4], [1]])
    phases = [balancer.Phase("vision", "images", sequence_parallel=4), balancer.Phase("llm", "tokens")]
    step = balancer.orchestrate({"images": images, "tokens": [500] * 8}, phases, 4)
    step.save(tmp_path / "plan.parquet")
    samples = step.phases["vision"].items.sample_of_item
    for rank in range(4):
        slots = list(PlannedBatchSampler(tmp_path / "plan.parquet", rank, "vision", micro_batches=True))
        mine = [step["vision"].samples_in_slot(rank, slot) for slot in range(3)]
        assert slots == [samples[items].tolist() for items in mine]
        llm = list(PlannedBatchSampler(tmp_path / "plan.parquet", rank, "llm", micro_batches=True))
        assert llm == [step["llm"].samples_on_rank(rank).tolist()]
    assert step["vision"].group_table.degree_of_sample[0] == 4


@pytest.fixture(scope="module")
def two_ranks():
    with Ranks(2, timeout=timedelta(seconds=20)) as ranks:
        yield ranks


def test_a_look_on_one_rank_holds_up_nobody(two_ranks):
    for looks in 0, 1:
        for epochs in zip(*two_ranks.run(cases.trains, looks), strict=True):
            assert sorted(row for rows in epochs for row in rows) == list(range(24))


def test_ranks_share_a_stream_and_another_one_is_named(two_ranks):
    for epochs in zip(*two_ranks.run(cases.streams, []), strict=True):
        assert sorted(row for rows in epochs for row in rows) == list(range(24))
    for said in two_ranks.run(cases.streams, [1]):
        assert "ranks begin epoch 0 with unlike stream: that of rank 1 is not that of rank 0" in said


def test_ranks_that_do_not_set_their_epoch_are_named():
    with Ranks(4, timeout=timedelta(seconds=3)) as ranks:
        for rank, said in enumerate(ranks.run(cases.sets_epoch_but, [1, 2])):
            if rank in (0, 3):
                wanted = (
                    f"rank {rank} waited to begin epoch 0, and ranks 1, 2 did not come; call set_epoch on all ranks"
                )
                assert said == wanted


def test_images_on_all_ranks_of_a_micro_step_or_on_none_train_under_fsdp(two_ranks):
    """Else the encoder's collective waits for a rank that has no image."""
    mixed = [
        {bool(cases.IMAGE[batch].any()) for batch in slot}
        for step in cases.sampler_of_images([]).plan()
        for slot in step
    ]
    assert any(len(each) == 2 for each in mixed), "without the limit"
    (first, apart), (second, _) = two_ranks.run(cases.trains_on_images)
    assert first == second
    assert set(first) == {False, True}
    assert apart < 1e-12
