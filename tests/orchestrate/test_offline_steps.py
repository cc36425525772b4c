"""Logs planned in several phases, and plan files of several phases taken at their word only as far as it holds."""

import contextlib
import dataclasses
import json

import numpy as np
import plan_files
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from phases_plan import AUDIO, IMAGES, PHASES, TEXT, drop, of, swap_ranks, update
from plan_files import tamper
from step_cases import cases

import balancer
from balancer import InputError, MicroBatches, Phase, PlanError, Ragged, Topology, orchestrate
from balancer.io.log import open_log
from balancer.offline.load import checked_steps
from balancer.offline.settings import LogSettings
from balancer.offline.steps import compare_log, plan_log
from balancer.problem.batch import HOMES
from balancer.problem.phases import resolve_phases
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.strategies import STRATEGIES
from solvers import InfeasibleError

NUMBERS = (Phase("audio", "audio"), Phase("llm", "text+audio", own="text"))


def write_log(folder, images=IMAGES, text=TEXT, audio=AUDIO):
    table = pa.table({"images": pa.array(images, pa.list_(pa.int64())), "text": text, "audio": audio})
    pq.write_table(table, folder / "log.parquet")
    return open_log(folder / "log.parquet")


def settings_of(batch_per_rank=2, topology=(2, 1), phases=PHASES, **others):
    of_log = {name: others.pop(name) for name in ("home", "drop_last") if name in others}
    return LogSettings(Setup(Topology(topology), phases, PlanSettings(**others)), batch_per_rank, **of_log)


def write_plan(folder, chosen, name="plan.parquet"):
    return plan_files.write_plan(f"{folder}/{name}", open_log(folder / "log.parquet"), chosen)


OPTIONS = {
    "plain": {},
    "strided": {"home": "strided", "drop_last": True},
    "joint": {"phases": (*PHASES[:1], Phase("audio", "audio"), PHASES[2]), "mode": "joint"},
    "groups": {"topology": (2, 2), "group_size": 2},
    "micro-batches": {"cut": MicroBatches(30), "drop_last": True},
    "micro-batches after encoders": {
        "cut": MicroBatches(30, over_long="own", encoders="step"),
        "drop_last": True,
        "mode": "joint",
    },
    "fixed micro-batches": {"cut": MicroBatches(60, count=3, allow_empty=True)},
    "one item a sample": {"phases": NUMBERS},
    "constraints": {
        "phases": (Phase("audio", "audio", max_tokens_per_rank=99, every_rank_nonempty=True), *NUMBERS[1:])
    },
}


# --- planning --------------------------------------------------------------------------------------------------------


@given(cases(), st.lists(st.integers(0, 10), min_size=2, max_size=2).map(sorted))
@settings(max_examples=examples(25))
def test_items_of_some_samples_of_many_are_those_found_alone(case, cut):
    start, stop = (min(each, len(case.text)) for each in cut)
    batch = {"key": ["ab"[length % 2] for length in case.text], "rank": [[0]] * len(case.text), **case.batch}
    phases = [dataclasses.replace(each, keep_together="key", allowed_ranks="rank") for each in case.phases]
    phases[-1] = dataclasses.replace(phases[-1], outputs="text", caps={"text": 9})
    batch = {name: Ragged.of(of) if name == "rank" else of for name, of in batch.items()}
    part = {name: of[start:stop] for name, of in batch.items()}
    for items, alone in zip(resolve_phases(batch, phases, 1), resolve_phases(part, phases, 1), strict=True):
        found = items.between(start, stop)
        assert dataclasses.replace(found, cap_amounts=()) == dataclasses.replace(alone, cap_amounts=())
        assert [of.tolist() for of in found.cap_amounts] == [of.tolist() for of in alone.cap_amounts]


@given(home=st.sampled_from(sorted(HOMES)), drop_last=st.booleans(), per_rank=st.integers(1, 5))
@settings(max_examples=examples(10))
def test_each_step_is_what_orchestrate_would_plan(home, drop_last, per_rank, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    log = write_log(folder)
    plans = list(plan_log(log, settings_of(per_rank, home=home, drop_last=drop_last)))
    per_step = 3 * per_rank
    firsts = [first for first in range(0, len(TEXT), per_step) if not drop_last or first + per_step <= len(TEXT)]
    assert len(plans) == len(firsts)
    for plan, first in zip(plans, firsts, strict=True):
        cut = slice(first, first + per_step)
        batch = {"images": balancer.Ragged.of(IMAGES[cut]), "text": TEXT[cut], "audio": AUDIO[cut]}
        deal = {"contiguous": lambda i: i // per_rank, "strided": lambda i: i % 3}[home]
        homes = [deal(i) for i in range(len(TEXT[cut]))]
        direct = orchestrate(batch, PHASES, Topology((2, 1)), home_rank=homes)
        assert plan.digest() == direct.digest()
        for name in ("vision", "audio", "llm"):
            assert plan[name] == direct[name]


def test_settings_round_trip():
    chosen = settings_of(
        phases=(
            Phase("a", "images", outputs="images", bytes_in=5),
            Phase("b", "x+y", cost="quadratic:a=1,b=2", every_rank_nonempty=True, max_tokens_per_rank=9),
            Phase("c", "z", own="x", bytes_out=7),
        ),
        home="strided", drop_last=True, group_size=3, time_budget=0.5,
    )  # fmt: skip
    assert LogSettings.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    chosen = settings_of(mode="joint", cut=MicroBatches(9, "step", count=4, encoders="step"))
    assert LogSettings.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen


def test_errors_call_samples_by_their_rows(tmp_path):
    log = write_log(tmp_path)
    capped = (Phase("vision", "images", max_tokens_per_rank=7), PHASES[2])
    with pytest.raises(
        InfeasibleError, match=r"log\.parquet: step 0: phase 'vision': item 6 \(of row 5\) has length 9"
    ):
        list(plan_log(log, settings_of(phases=capped)))
    images = [[length] for length in TEXT[:6]] + [[1, 2]] + [[length] for length in TEXT[7:]]
    with pytest.raises(InputError, match=r"step 1: phase 'vision': row 6 has 2 items but outputs = 'text' gives 1"):
        list(plan_log(write_log(tmp_path, images=images), settings_of(
            phases=(Phase("vision", "images", outputs="text"), PHASES[2])
        )))  # fmt: skip
    with pytest.raises(InputError, match=r"column 'nowhere'"):
        list(plan_log(log, settings_of(phases=(Phase("llm", "nowhere"),))))


# --- comparing -------------------------------------------------------------------------------------------------------


def test_every_strategy_sees_every_sample(tmp_path):
    log = write_log(tmp_path)
    seen = {name: [] for name in STRATEGIES}
    for strategy, plan in compare_log(log, settings_of()):
        seen[strategy].append(plan)
    for plans in seen.values():
        assert [plan.num_samples for plan in plans] == [6, 6, 1]
        lengths = [length for plan in plans for length in plan["llm"].lengths.tolist()]
        assert lengths == [t + a for t, a in zip(TEXT, AUDIO, strict=True)]
    direct = [plan.digest() for plan in plan_log(log, settings_of())]
    assert [plan.digest() for plan in seen["orchestrated"]] == direct


def test_some_strategies_and_some_steps(tmp_path):
    log = write_log(tmp_path)
    found = [name for name, _ in compare_log(log, settings_of(), ["llm_only", "as_sampled"], num_steps=2)]
    assert found == ["llm_only", "as_sampled"] * 2
    with pytest.raises(ValueError, match="unknown strategy 'x'"):
        list(compare_log(log, settings_of(), ["x"]))
    with pytest.raises(ValueError, match="steps must be >= 1"):
        list(compare_log(log, settings_of(), num_steps=0))


# --- replaying -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "form"), [*((name, "plan.parquet") for name in OPTIONS), ("plain", "plan/")])
def test_replay_gives_the_same_plans(name, form, tmp_path):
    write_log(tmp_path)
    plans = write_plan(tmp_path, settings_of(**OPTIONS[name]), form)
    replayed = list(checked_steps(f"{tmp_path}/{form}"))
    assert len(replayed) == len(plans) > 1
    for found, plan in zip(replayed, plans, strict=True):
        assert found.digest() == plan.digest()
        assert list(found.phases) == list(plan.phases)
        for phase in plan.phases:
            assert found[phase].target == plan[phase].target
            assert found[phase].home == plan[phase].home
            assert found[phase].slot_of_sample.tolist() == plan[phase].slot_of_sample.tolist()
            assert (found[phase].makespan, found[phase].num_slots) == (plan[phase].makespan, plan[phase].num_slots)
            assert found[phase].lower_bound <= found[phase].makespan
            assert found[phase].lower_bound >= plan[phase].lower_bound
        for stream in plan.streams:
            for rank in range(plan.num_ranks):
                assert found.streams[stream].exchange(rank) == plan.streams[stream].exchange(rank)


cells = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.integers(0, 9), st.integers(0, 9)), min_size=1)


@given(rows=cells)
@settings(max_examples=examples(10))
def test_any_log_round_trips(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    write_log(folder, *(list(column) for column in zip(*rows, strict=True)))
    plans = write_plan(folder, settings_of())
    assert [p.digest() for p in checked_steps(folder / "plan.parquet")] == [p.digest() for p in plans]


def test_rows_are_what_the_form_says(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    table = pq.read_table(tmp_path / "plan.parquet")
    assert table.column_names == ["step", "phase", "sample", "rank", "slot", "position", "item"]
    items = [(r["sample"], r["item"]) for r in table.to_pylist() if r["phase"] == "vision"]
    assert sorted(items) == [(s, j) for s, images in enumerate(IMAGES) for j in range(len(images))]
    assert sorted(r["sample"] for r in table.to_pylist() if r["phase"] == "llm") == list(range(len(TEXT)))
    write_plan(tmp_path, settings_of(phases=NUMBERS[-1:]))
    assert "item" not in pq.read_table(tmp_path / "plan.parquet").column_names


def test_load_plan_gives_the_steps_of_several_phases(tmp_path):
    write_log(tmp_path)
    plans = write_plan(tmp_path, settings_of())
    loaded = balancer.load_plan(tmp_path / "plan.parquet", 1)
    assert isinstance(loaded, balancer.StepPlan)
    assert loaded.digest() == plans[1].digest()
    with pytest.raises(InputError, match=r"plan\.parquet: holds 3 steps; say which"):
        balancer.load_plan(tmp_path / "plan.parquet")


def test_load_steps_reads_files_of_one_phase(tmp_path):
    plan = balancer.balance([3, 4, 5], 2)
    plan.save(tmp_path / "one.parquet")
    (step,) = checked_steps(tmp_path / "one.parquet")
    assert list(step.phases) == ["all"]
    assert (step["all"], step.digest()) == (plan, plan.digest())


def test_another_log_is_refused(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    write_log(tmp_path, text=[*TEXT[:-1], 5])
    with pytest.raises(InputError, match=r"was not made from .*log\.parquet: the log's size or SHA-256 differs"):
        list(checked_steps(tmp_path / "plan.parquet"))


TAMPERINGS = {
    "two ranks swapped": (swap_ranks, r"digest"),
    "item dropped": (drop("vision"), r"step 0: phase 'vision': item 0 of sample 0 is not placed"),
    "sample dropped": (drop("llm"), r"step 0: phase 'llm': sample 0 is not placed"),
    "step dropped": (lambda rows: rows.__delitem__(slice(len(rows) - 3, None)), r"step 2 is missing"),
    "item of a whole sample": (update("llm", item=1), r"step 0: phase 'llm': sample 0 is not placed"),
    "item twice": (lambda rows: rows.insert(1, dict(rows[0])), r"'vision': items are placed twice"),
    "rank too large": (update("vision", rank=3), r"'vision': rank_of_sample\[0\] must be within 0..2, got 3"),
    "slot": (update("llm", slot=1), r"'llm': has micro-batch slots, which its description does not mention"),
    "negative slot": (update("vision", slot=-5), r"'vision': slot must be within 0..0, got -5"),
    "unknown phase": (lambda rows: rows.insert(0, rows[0] | {"phase": "x"}), r"step 0: places samples in a phase 'x'"),
    "phase twice": (
        lambda rows: rows.insert(len(of(rows, "vision")) + 1, rows[0]),
        r"phase 'vision' stands there twice",
    ),
    "another step": (lambda rows: rows.append(rows[-1] | {"step": 9}), r"has more steps than the log"),
    "steps in another order": (lambda rows: rows.sort(key=lambda r: -r["step"]), r"step 0 is missing"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampered_rows(name, tmp_path):
    change, message = TAMPERINGS[name]
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    tamper(tmp_path / "plan.parquet", rows=change)
    with pytest.raises(PlanError, match=message):
        list(checked_steps(tmp_path / "plan.parquet"))


def cut_at(description, tokens, **rules):
    """Claim micro-batches, in full as a description has them."""
    description["settings"].update(cut=MicroBatches(tokens, **rules).to_json())


DESCRIPTIONS = {
    "no topology": (lambda d: d.pop("topology"), InputError, "not one this version reads"),
    "another batch": (lambda d: d.update(batch_per_rank=3), PlanError, "is not placed|placed twice"),
    "phase with an unknown field": (lambda d: d["phases"][0].update(x=5), InputError, "not one this version reads"),
    "unknown column": (lambda d: d["phases"][1].update(length="x"), InputError, "column 'x'"),
    "other items": (lambda d: d["phases"][1].update(length="text"), PlanError, "'audio': item 0 of sample"),
    "no source": (lambda d: d.pop("sources"), InputError, "does not name the log"),
    "source is text": (lambda d: d.update(sources=["log.parquet"]), InputError, "does not name the log"),
    "another SHA-256": (lambda d: d["sources"][0].update(sha256="0"), InputError, "the log's size or SHA-256 differs"),
    "digest": (lambda d: d.update(digest="0"), PlanError, "the digest of its 3 steps is"),
    "groups": (lambda d: d["settings"].update(group_size=1), PlanError, "leaves its group of 1 ranks"),
    "cap": (lambda d: d["phases"][0].update(max_tokens_per_rank=10), PlanError, "tokens, cap 10"),
    "cap of no use": (lambda d: d["phases"][0].update(max_tokens_per_rank=2), InfeasibleError, "has length"),
    "micro-batches": (lambda d: cut_at(d, 9, over_long="own"), PlanError, "tokens, cap 9"),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_tampered_descriptions(name, tmp_path):
    change, kind, message = DESCRIPTIONS[name]
    write_log(tmp_path, text=[30, *TEXT[1:]])
    write_plan(tmp_path, settings_of())
    tamper(tmp_path / "plan.parquet", description=change)
    with pytest.raises(kind, match=message):
        list(checked_steps(tmp_path / "plan.parquet"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (update("llm", slot=2**31 - 1), "claims 2 micro-batches a rank, which cannot be with 2147483648"),
        (update("llm", slot=-1), "slot must be >= 0, got -1"),
        (lambda rows: [row.update(slot=1) for row in of(rows, "vision")], "in slot 1, after its sample"),
        (lambda rows: [row.update(slot=0) for row in of(rows, "vision")], "digest"),
    ],
)
def test_tampered_slots(change, message, tmp_path):
    write_log(tmp_path)
    plans = write_plan(tmp_path, settings_of(cut=MicroBatches(25, at_least=2), drop_last=True))
    assert plans[0].num_slots == 2
    tamper(tmp_path / "plan.parquet", rows=change)
    with pytest.raises(PlanError, match=message):
        list(checked_steps(tmp_path / "plan.parquet"))


def test_a_file_without_items(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    table = pq.read_table(tmp_path / "plan.parquet")
    pq.write_table(table.drop_columns(["item"]), tmp_path / "plan.parquet")
    with pytest.raises(PlanError, match="has no column 'item'"):
        list(checked_steps(tmp_path / "plan.parquet"))


def test_a_damaged_file(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    path = tmp_path / "plan.parquet"
    whole = path.read_bytes()
    for cut in np.linspace(0, len(whole) - 1, 12).astype(int):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError):
            list(checked_steps(path))
    for at in range(4, len(whole) - 8, 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(InputError, PlanError):
            list(checked_steps(path))


def test_items_are_not_counted_beside_numbers(tmp_path):
    """A list of numbers is items in one phase: its values are not counted in the length of another."""
    pq.write_table(pa.table({"text": [5, 6], "images": [[1, 2], [3]]}), tmp_path / "log.parquet")
    phases = (Phase("vision", "images"), Phase("llm", "text+images"))
    with pytest.raises(
        InputError, match=r"column 'images' has a list .* 'text\+images' would count them; add a column"
    ):
        list(plan_log(open_log(tmp_path / "log.parquet"), settings_of(phases=phases)))
