"""Logs planned step by step, and plan files taken at their word only as far as it holds."""

import numpy as np
import plan_files
import pyarrow.parquet as pq
import pytest
from balance_cases import lengths_in
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from nightly import examples
from plan_files import tamper

import balancer
from balancer import InputError, Phase, PlanError, Topology, load_plan
from balancer.compat import PlannedBatchSampler
from balancer.io.log import open_log
from balancer.offline.load import checked_steps
from balancer.offline.settings import LogSettings
from balancer.offline.steps import plan_log
from balancer.problem.batch import HOMES
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from solvers import InfeasibleError

LENGTHS = [5, 40, 3, 22, 9, 1, 17, 8, 30, 2, 6]


@pytest.fixture
def folder(tmp_path):
    write_log(tmp_path, LENGTHS)
    return tmp_path


def write_log(folder, lengths):
    np.save(folder / "log.npy", np.array(lengths, dtype=np.int64))


def settings_of(batch_per_rank=2, topology=(2, 1), home="contiguous", drop_last=False, planned=None, **of_phase):
    setup = Setup(Topology(topology), (Phase("all", "length", **of_phase),), PlanSettings(**planned or {}))
    return LogSettings(setup, batch_per_rank, home, drop_last)


def planned_by(settings, folder):
    """The plans of a log, each the only phase of its step."""
    return [plan["all"] for plan in plan_log(open_log(folder / "log.npy"), settings)]


def write_plan(folder, settings, name="plan.parquet"):
    log = open_log(folder / "log.npy")
    return [plan["all"] for plan in plan_files.write_plan(f"{folder}/{name}", log, settings)]


# --- planning --------------------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=40),
    home=st.sampled_from(sorted(HOMES)),
    cost=st.sampled_from(["linear", "quadratic:a=3,b=1", "padded", "convolution:a=9,b=1,c=40,p=1"]),
    drop_last=st.booleans(),
    batch_per_rank=st.integers(1, 4),
)
@settings(max_examples=examples(25))
def test_each_step_is_what_balance_would_plan(lengths, home, cost, drop_last, batch_per_rank, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    write_log(folder, lengths)
    settings = settings_of(batch_per_rank, home=home, cost=cost, drop_last=drop_last)
    plans = planned_by(settings, folder)
    per_step = 3 * batch_per_rank
    batches = [lengths[i : i + per_step] for i in range(0, len(lengths), per_step)]
    if drop_last:
        batches = [batch for batch in batches if len(batch) == per_step]
    assert len(plans) == len(batches)
    for plan, batch in zip(plans, batches, strict=True):
        deal = {"contiguous": lambda i: i // batch_per_rank, "strided": lambda i: i % 3}[home]
        homes = [deal(i) for i in range(len(batch))]
        assert plan == balancer.balance(batch, 3, topology=Topology((2, 1)), home_rank=homes, cost=cost)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_per_rank": 0}, ["batch_per_rank", ">= 1"]),
        ({"batch_per_rank": 2**30}, ["global batch", "2147483647"]),
        ({"home": "random"}, ["'random'", "contiguous", "strided"]),
    ],
)
def test_bad_settings_are_named_before_anything_is_read(change, words):
    with pytest.raises(ValueError, match=r"_|method|home|global|caps") as caught:
        settings_of(**change)
    for word in words:
        assert word in str(caught.value)


def test_an_infeasible_step_is_named(folder):
    write_log(folder, [1, 1, 1, 1, 1, 1, 20, 20, 20, 20, 19, 18])
    with pytest.raises(InfeasibleError, match=r"log\.npy: step 1: .*max_tokens_per_rank = 39"):
        planned_by(settings_of(max_tokens_per_rank=39), folder)


def test_an_overflow_names_log_step_and_row(folder):
    write_log(folder, [1, 1, 1, 1, 1, 1, 1, 2**40])
    with pytest.raises(InputError, match=r"log\.npy: step 1: .*row 7 \(length 1099511627776\)"):
        planned_by(settings_of(cost="quadratic:a=1,b=1"), folder)


# --- replaying -------------------------------------------------------------------------------------------------------


@given(lengths=lengths_in.filter(bool), home=st.sampled_from(sorted(HOMES)), drop_last=st.booleans())
@example(lengths=[2095, 2095, 5649, 7744, 7744], home="contiguous", drop_last=False)
@settings(max_examples=examples(10))
def test_replay_gives_the_same_plans(lengths, home, drop_last, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    write_log(folder, lengths)
    assume(not drop_last or len(lengths) >= settings_of().samples_per_step)
    plans = write_plan(folder, settings_of(home=home, drop_last=drop_last))
    replayed = [step["all"] for step in checked_steps(folder / "plan.parquet")]
    assert [plan.digest() for plan in replayed] == [plan.digest() for plan in plans]
    for found, plan in zip(replayed, plans, strict=True):
        assert (found.home, found.target, found.method) == (plan.home, plan.target, plan.method)
        assert found.loads.tolist() == plan.loads.tolist()
        assert found.home_loads.tolist() == plan.home_loads.tolist()
        assert found.lower_bound == plan.lower_bound
        assert found.bound_name == plan.bound_name


@pytest.mark.parametrize("form", ["plan.parquet", "plan/"])
def test_load_plan_by_step(folder, form):
    plans = write_plan(folder, settings_of(), form)
    for step in (0, 1):
        assert load_plan(f"{folder}/{form}", step=step).digest() == plans[step].digest()
    with pytest.raises(InputError, match="holds 2 steps; say which"):
        load_plan(f"{folder}/{form}")
    for step in (2, -1):
        with pytest.raises(ValueError, match=f"has no step {step}|step must be >= 0, got {step}"):
            load_plan(f"{folder}/{form}", step=step)


def test_load_plan_finds_a_log_that_moved_with_the_plan_or_is_named(folder, tmp_path_factory):
    plans = write_plan(folder, settings_of())
    moved = tmp_path_factory.mktemp("moved")
    for name in ("plan.parquet", "log.npy"):
        (folder / name).rename(moved / name)
    assert load_plan(moved / "plan.parquet", 0) == plans[0]
    (moved / "log.npy").rename(moved / "renamed.npy")
    with pytest.raises(InputError, match=r"plan\.parquet: the log it was made from, .*log\.npy, is not there"):
        load_plan(moved / "plan.parquet", 0)
    assert load_plan(moved / "plan.parquet", 1, log=moved / "renamed.npy").digest() == plans[1].digest()


def swap_ranks(rows):
    other = next(r for r in rows if r["step"] == rows[0]["step"] and r["rank"] != rows[0]["rank"])
    for key in ("rank", "position"):
        rows[0][key], other[key] = other[key], rows[0][key]


def step_two(rows):
    rows.append({**rows[-1], "step": 2})


TAMPERINGS = {
    "two positions swapped": (lambda rows: swap_positions(rows), r"digest"),
    "row dropped": (lambda rows: rows.pop(1), r"step 0: sample 1 is not placed"),
    "row twice": (lambda rows: rows.insert(1, dict(rows[0])), r"step 0: samples are placed twice"),
    "rank too large": (
        lambda rows: rows[2].update(rank=3),
        r"step 0: rank_of_sample\[2\] must be within 0\.\.2, got 3",
    ),
    "step gone": (lambda rows: rows.__delitem__(slice(6, None)), r"step 1 is missing"),
    "step too many": (step_two, r"more steps than the log, which ends at step 1"),
    "steps interleaved": (lambda rows: rows.append(rows.pop(0)), r"step 0: sample 0 is not placed"),
    "a micro-batch": (lambda rows: rows[3].update(slot=1), r"step 0: has micro-batch slots"),
}


def swap_positions(rows):
    by_rank = {}
    for row in rows[:6]:
        if row["rank"] in by_rank:
            other = by_rank[row["rank"]]
            row["position"], other["position"] = other["position"], row["position"]
            return
        by_rank[row["rank"]] = row


@pytest.mark.parametrize(("change", "rule"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_a_tampered_plan_is_caught(folder, change, rule):
    write_plan(folder, settings_of())
    tamper(folder / "plan.parquet", rows=change)
    with pytest.raises(PlanError, match=rule) as caught:
        list(checked_steps(folder / "plan.parquet"))
    assert "plan.parquet" in str(caught.value)


OF_STEP_0 = [(change, rule) for change, rule in TAMPERINGS.values() if rule.startswith("step 0: ")]


@pytest.mark.parametrize(("change", "rule"), OF_STEP_0)
def test_load_plan_checks_the_step_that_it_reads(folder, change, rule):
    plans = write_plan(folder, settings_of())
    tamper(folder / "plan.parquet", rows=change)
    assert load_plan(folder / "plan.parquet", step=1).digest() == plans[1].digest()
    if change is not TAMPERINGS["steps interleaved"][0]:  # the step's rows are there, in another order
        with pytest.raises(PlanError, match=rule):
            load_plan(folder / "plan.parquet", step=0)


def test_one_step_is_one_row_group(folder, monkeypatch):
    write_log(folder, np.arange(6 * 140) % 90)
    plans, asked = write_plan(folder, settings_of()), []
    read = pq.ParquetFile.iter_batches

    def noted(file, size, groups, columns):
        asked.extend(groups)
        return read(file, size, groups, columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    for step, group in ((0, 0), (63, 0), (64, 1), (139, 2)):
        asked.clear()
        assert load_plan(folder / "plan.parquet", step=step).digest() == plans[step].digest()
        assert asked == [group]
    asked.clear()
    sampler = PlannedBatchSampler(folder / "plan.parquet", rank=0, start_step=70)
    assert next(iter(sampler)) == (plans[70].samples_on_rank(0) + 6 * 70).tolist()
    assert asked == [1, 2]  # the row groups from there on, read as they are needed


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("topology"),
        lambda d: d["topology"].update(node_sizes=[0]),
        lambda d: d["phases"][0].update(cost="cubic"),
        lambda d: d.update(batch_per_rank="2"),
        lambda d: d["settings"].update(unknown=1),
    ],
)
def test_a_description_that_cannot_be_used_is_named(folder, change):
    write_plan(folder, settings_of())
    tamper(folder / "plan.parquet", description=change)
    with pytest.raises(InputError, match=r"plan\.parquet: its description is not one this version reads"):
        list(checked_steps(folder / "plan.parquet"))


# --- plans with their own lengths ------------------------------------------------------------------------------------


@pytest.fixture
def own_plan(tmp_path):
    path = tmp_path / "plan.parquet"
    balancer.balance([5, 4, 3, 3, 3], 2, method="lpt").save(path)
    return path


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (swap_ranks, r"digest"),
        (lambda rows: rows[4].update(step=1), r"holds several steps, but a plan with its own lengths has one"),
    ],
)
def test_a_tampered_plan_with_its_own_lengths(own_plan, change, rule):
    tamper(own_plan, rows=change)
    with pytest.raises(PlanError, match=rule):
        load_plan(own_plan)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda d: d["saved"]["all"]["certificate"].update(lower_bound=10), r"claims lower_bound = 10"),
        (
            lambda d: d["saved"]["all"]["certificate"].update(lower_bound=11, bound_name="cp_sat"),
            r"claims lower_bound = 11",
        ),
    ],
)
def test_a_false_certificate_is_caught(own_plan, change, rule):
    tamper(own_plan, description=change)
    with pytest.raises((PlanError, InputError), match=rule) as caught:
        load_plan(own_plan)
    assert "plan.parquet" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"home_rank": 7}, r"home_rank\[0\] must be within 0\.\.1"),
        ({"length": -7}, r"lengths\[0\] must be >= 0, got -7"),
    ],
)
def test_homes_and_lengths_that_cannot_be(own_plan, change, rule):
    tamper(own_plan, rows=lambda rows: rows[0].update(change))
    with pytest.raises((PlanError, InputError), match=rf"plan\.parquet.*{rule}"):
        load_plan(own_plan)


@pytest.mark.parametrize("column", ["length", "home_rank"])
def test_a_plan_with_half_of_its_own_columns(own_plan, column):
    pq.write_table(pq.read_table(own_plan).drop_columns([column]), own_plan)
    with pytest.raises((PlanError, InputError)) as caught:
        load_plan(own_plan)
    assert "plan.parquet" in str(caught.value)


def test_a_path_or_a_step_of_another_kind_is_named(folder):
    write_plan(folder, settings_of())
    with pytest.raises(TypeError, match="path must be a path of a plan, got 5"):
        load_plan(5)
    with pytest.raises(TypeError, match="step must be an integer, got '0'"):
        load_plan(folder / "plan.parquet", step="0")


def test_a_plan_in_memory_is_no_log(folder):
    write_plan(folder, settings_of())
    with pytest.raises(InputError, match="the table: is a plan, and no log"):
        open_log(pq.read_table(folder / "plan.parquet"))
