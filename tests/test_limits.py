"""Limits of micro-batches as trainers say them: in balance, phases, step files and plan files."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import balancer
from balancer import CountLimit, Everywhere, Kinds, Limit, MicroBatches, PaddedLimit, Phase
from balancer.offline.load import checked_steps
from balancer.problem.limits import held_limits
from balancer.step import step_of
from solvers import InfeasibleError, SolverError

RANKS = 8


def images_and_text(n: int = 256) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    image = np.zeros(n, dtype=bool)
    image[rng.permutation(n)[:20]] = True
    patches = np.where(image, rng.integers(256, 4096, n), 0)
    text = np.clip(rng.lognormal(6, 0.8, n), 16, 4096).astype(np.int64)
    return {"tokens": text + patches // 4, "patches": patches, "images": image, "version": rng.integers(0, 3, n)}


def empty_places(plan: balancer.DispatchPlan, there: np.ndarray) -> list[int]:
    """In how many slots each: how many ranks have no true sample, of slots where some rank has one."""
    has = [[bool(there[plan.samples_in_slot(r, k)].any()) for r in range(RANKS)] for k in range(plan.num_slots)]
    return [RANKS - sum(slot) for slot in has if any(slot)]


def test_images_on_all_ranks_of_a_slot_or_on_none_cost_little():
    batch = images_and_text()
    mixed = balancer.balance(batch["tokens"], RANKS, cut=MicroBatches(4096))
    plan = balancer.balance(batch["tokens"], RANKS, cut=MicroBatches(4096, limits=[Everywhere(batch["images"])]))
    assert max(empty_places(mixed, batch["images"])) > 0
    assert set(empty_places(plan, batch["images"])) == {0}
    assert plan.makespan <= 1.002 * mixed.makespan


ALL = {
    "sum": lambda batch: Limit(batch["patches"], 5000),
    "count": lambda batch: CountLimit(9),
    "padded": lambda batch: PaddedLimit(6000),
    "kinds": lambda batch: Kinds(batch["version"]),
    "everywhere": lambda batch: Everywhere(batch["images"]),
}


@pytest.mark.parametrize("sync", ["micro_batch", "step"])
@pytest.mark.parametrize("kind", ALL)
def test_plans_keep_to_limits_beside_what_ranks_keep_to_and_near_home(kind: str, sync: str):
    batch = images_and_text()
    limit, home = ALL[kind](batch), np.arange(256) % RANKS
    cut = MicroBatches(4096, sync, limits=[limit])
    for plan in (
        balancer.balance(batch["tokens"], RANKS, 4, home, cut=cut),
        balancer.balance(batch["tokens"], RANKS, cut=cut, max_samples_per_rank=80),
    ):
        held = held_limits([limit], 256, RANKS)
        laid = plan.lengths, plan.rank_of_sample, plan.slot_of_sample, RANKS, plan.num_slots
        assert held.violation(*laid) is None
        assert np.bincount(plan.rank_of_sample).max() <= 80 or plan.home_rank is not None
        assert plan.gap < (0.12 if kind == "padded" else 0.02)


def test_phases_and_step_files_say_them_by_column(tmp_path: Path):
    batch = images_and_text() | {"images": images_and_text()["images"].astype(int)}
    phases = [Phase("vision", "patches"), Phase("llm", "tokens")]
    cut = MicroBatches(4096, limits=[Everywhere("images"), Limit("patches", 6000), CountLimit(12)])
    step = balancer.orchestrate(batch, phases, RANKS, cut=cut)
    plan = step["llm"]
    assert empty_places(plan, batch["images"] > 0) == [0] * len(empty_places(plan, batch["images"] > 0))
    step.save(tmp_path / "step.parquet")
    again = balancer.load_plan(tmp_path / "step.parquet")
    assert again.digest() == step.digest()
    assert again["llm"].cut.limits == cut.limits
    said = step_of(
        {"cut": {"tokens": 4096, "limits": [{"kind": "everywhere", "values": "images"},
                                            {"amounts": "patches", "most": 6000}, {"kind": "count", "most": 12}]}}
    )  # fmt: skip
    assert said.made_cut() == cut
    assert json.loads(json.dumps(cut.to_json()))["limits"][0] == {"kind": "everywhere", "values": "images"}


def test_a_sample_that_is_over_a_limit_alone_is_named_with_limit_and_excess():
    with pytest.raises(InfeasibleError, match=r"sample 1: its limits\[0\] is 9, over the limit 5 by 4"):
        balancer.balance([5, 6, 7, 8], 2, cut=MicroBatches(99, limits=[Limit([1, 9, 1, 1], 5)]))
    with pytest.raises(InfeasibleError, match=r"sample 3: its PaddedLimit is 8, over the limit 7 by 1"):
        balancer.balance([5, 6, 7, 8], 2, cut=MicroBatches(99, limits=[PaddedLimit(7)]))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([CountLimit(2), CountLimit(3)], "limits has two of CountLimit; give one"),
        ([Kinds([1]), Everywhere([1])], "limits cannot have Kinds and Everywhere together"),
        ([7], r"limits\[0\] must be one of Limit, CountLimit, PaddedLimit, Kinds, Everywhere, got 7"),
        ("few", "limits must be a list of Limit"),
        ([{"kind": "sums"}], r"limits\[0\].kind must be one of sum, count, padded, kinds, everywhere, got 'sums'"),
        ([{"kind": "count", "least": 3}], r"limits\[0\].least: there is no such key"),
        ([{"kind": "sum", "most": 3}], r"limits\[0\].amounts is missing"),
    ],
)
def test_limits_that_cannot_be_are_refused(limits: object, words: str):
    with pytest.raises((TypeError, ValueError), match=words):
        MicroBatches(10, limits=limits)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Limit([1, 2], 5), r"limits\[0\].amounts must have a value for each of 4 samples"),
        (Limit([1, -2, 1, 1], 5), r"limits\[0\].amounts\[1\] must be >= 0, got -2"),
        (Limit("images", 5), "is a column, and there are none: give an array"),
        (Limit([1, 1, 1, 1], [5, 6]), "one number for each rank is for samplers"),
        (Kinds([0.5, 1, 1, 1]), r"limits\[0\].values must hold integers or text"),
    ],
)
def test_arrays_that_do_not_fit_the_batch_are_refused(limit: object, words: str):
    with pytest.raises((TypeError, ValueError), match=words):
        balancer.balance([5, 6, 7, 8], 2, cut=MicroBatches(99, limits=[limit]))


def test_a_step_without_samples_has_a_plan():
    for limit in CountLimit(3), Kinds([]), Everywhere([]), PaddedLimit(9):
        plan = balancer.balance([], 2, cut=MicroBatches(9, limits=[limit], allow_empty=True))
        assert plan.makespan == 0


@pytest.mark.parametrize("sync", ["micro_batch", "step"])
def test_a_limit_that_nothing_reaches_changes_nothing_and_overflows_nothing(sync: str):
    lengths = np.arange(1, 60)
    free = balancer.balance(lengths, 2, cut=MicroBatches(100, sync))
    for most in 2**40, 2**63 - 1:
        cut = MicroBatches(100, sync, limits=[Limit(lengths, most)])
        assert balancer.balance(lengths, 2, cut=cut).makespan <= 1.002 * free.makespan
        together = balancer.balance(lengths, 2, cut=cut, keep_together=lengths // 2)
        assert (together.rank_of_sample[1:-1:2] == together.rank_of_sample[2::2]).all()  # 2 and 3, 4 and 5, ...


def test_what_breaks_a_limit_is_said():
    lengths, rank, slot = np.array([3, 4, 5, 6]), np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
    said = {
        "sum": "micro-batch 0 of rank 0 holds 9 limits[0], over the limit by 2",
        "count": "micro-batch 0 of rank 0 holds 2 samples, over the limit by 1",
        "padded": "micro-batch 0 of rank 0 holds 8 padded elements, over the limit by 1",
        "kinds": "micro-batch 0 of rank 0 holds samples of two kinds",
        "everywhere": "in slot 0 rank 1 has no sample of Everywhere, and rank 0 has",
    }
    limits = [
        Limit([5, 4, 1, 1], 7),
        CountLimit(1),
        PaddedLimit(7),
        Kinds(["a", "b", "a", "a"]),
        Everywhere([1, 0, 0, 0]),
    ]
    for limit, words in zip(limits, said.values(), strict=True):
        assert held_limits([limit], 4, 2).violation(lengths, rank, slot, 2, 2) == words


@pytest.mark.parametrize(
    ("ranks", "amounts", "kinds"),
    [(2, [5, 9, 7, 3, 7, 6, 5], [2, 0, 1, 0, 2, 0, 2]), (1, [4, 6, 4, 6, 4], [0, 1, 0, 1, 1])],
)
def test_kinds_that_cost_nothing_get_the_micro_batches_that_they_need(ranks, amounts, kinds):
    limits = [Limit(amounts, 9), Kinds(kinds)]
    cut = MicroBatches(1000, limits=limits, allow_empty=True)
    plan = balancer.balance([0] * len(amounts), ranks, cut=cut)
    assert plan.num_slots * ranks <= 4 * len(amounts)


@pytest.mark.parametrize("count", [3, 41])
def test_what_no_number_of_micro_batches_can_do_ends(count):
    cut = MicroBatches(1000, limits=[CountLimit(1), Everywhere([1] * count)], allow_empty=True)
    with pytest.raises(SolverError, match="give more micro-batches, or higher limits"):
        balancer.balance([1] * count, 2, cut=cut)


def test_a_log_is_planned_with_kinds_by_column(tmp_path: Path):
    columns = {"text": [20, 30, 40] * 8, "task": ["a", "b", "a"] * 8}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    cut = MicroBatches(200, limits=[Kinds("task"), CountLimit(2**40)])
    asked = {"num_ranks": 2, "batch_per_rank": 6, "length": "text", "cut": cut}
    balancer.plan_log(tmp_path / "log.parquet", out=tmp_path / "plan.parquet", **asked)
    for step, plan in enumerate(checked_steps(tmp_path / "plan.parquet")):
        tasks = np.array(columns["task"])[12 * step : 12 * step + 12]
        for rank in range(2):
            for slot in range(plan.num_slots):
                assert len(set(tasks[plan["all"].samples_in_slot(rank, slot)])) == 1
