"""Logs planned in several phases, and plan files of several phases taken at their word only as far as it holds."""

import contextlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import balancer
from balancer import InputError, MicroBatches, Phase, PlanError, Topology, load_steps, orchestrate
from balancer.io.logs import open_log
from balancer.io.plan_writer import PlanWriter
from balancer.offline.one_phase import PlanDigest
from balancer.offline.steps import StepSettings, append_step, compare_log, describe_steps, plan_steps
from balancer.planning.strategies import STRATEGIES
from balancer.problem.batch import HOMES
from solvers import InfeasibleError

IMAGES = [[5, 3], [], [7], [2, 2, 2], [], [9], [1], [4, 4], [], [], [6, 1], [8], [3]]
TEXT = [4, 9, 2, 7, 1, 3, 8, 5, 6, 2, 2, 9, 4]
AUDIO = [0, 5, 0, 0, 8, 0, 2, 0, 0, 0, 6, 0, 1]
PHASES = (
    Phase("vision", "lengths(images)", bytes_in=3, bytes_out=2),
    Phase("audio", "audio", cost="quadratic:a=2,b=1"),
    Phase("llm", "text+audio", own="text"),
)
NUMBERS = (Phase("audio", "audio"), Phase("llm", "text+audio", own="text"))


def write_log(folder, images=IMAGES, text=TEXT, audio=AUDIO):
    table = pa.table({"images": pa.array(images, pa.list_(pa.int64())), "text": text, "audio": audio})
    pq.write_table(table, folder / "log.parquet")
    return open_log(folder / "log.parquet")


def settings_of(batch_per_rank=2, topology=(2, 1), phases=PHASES, **others):
    return StepSettings(Topology(topology), batch_per_rank, phases, **others)


def write_plan(folder, chosen, name="plan.parquet"):
    log = open_log(folder / "log.parquet")
    digest, samples, plans = PlanDigest(), 0, list(plan_steps(log, chosen))
    with PlanWriter(f"{folder}/{name}", item_column=chosen.several_items) as writer:
        for step, plan in enumerate(plans):
            digest.add(plan)
            append_step(writer, step, samples, plan, chosen.several_items)
            samples += plan.num_samples
        writer.close(describe_steps(log, chosen, len(plans), samples, digest))
    return plans


def tamper(path, rows=lambda rows: None, description=lambda description: None):
    """Rewrite a plan file with its rows and its description changed."""
    table = pq.read_table(path)
    metadata = json.loads(table.schema.metadata[b"balancer"])
    cells = table.to_pylist()
    rows(cells)
    description(metadata)
    schema = table.schema.with_metadata({b"balancer": json.dumps(metadata).encode()})
    pq.write_table(pa.Table.from_pylist(cells, schema=schema), path)


OPTIONS = {
    "plain": {},
    "strided": {"home": "strided", "drop_last": True},
    "joint": {"phases": (*PHASES[:1], Phase("audio", "audio"), PHASES[2]), "mode": "joint"},
    "auto": {"mode": "auto"},
    "groups": {"topology": (2, 2), "group_size": 2},
    "micro-batches": {"micro_batches": MicroBatches(30), "drop_last": True},
    "micro-batches after encoders": {
        "micro_batches": MicroBatches(30, over_long="own", encoders="step"),
        "drop_last": True,
        "mode": "auto",
    },
    "fixed micro-batches": {"micro_batches": MicroBatches(60, count=3, allow_empty=True)},
    "one item a sample": {"phases": NUMBERS},
    "constraints": {
        "phases": (Phase("audio", "audio", max_tokens_per_rank=99, every_rank_nonempty=True), *NUMBERS[1:])
    },
    "fed by one that is fed": {
        "phases": (Phase("vision", "lengths(images)", feeds="mid"), Phase("mid", "audio"), Phase("llm", "text"))
    },
}


# --- planning --------------------------------------------------------------------------------------------------------


@given(home=st.sampled_from(sorted(HOMES)), drop_last=st.booleans(), per_rank=st.integers(1, 5))
@settings(max_examples=20)
def test_each_step_is_what_orchestrate_would_plan(home, drop_last, per_rank, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    log = write_log(folder)
    plans = list(plan_steps(log, settings_of(per_rank, home=home, drop_last=drop_last)))
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
            Phase("a", "lengths(images)", outputs="lengths(images)", feeds="b", bytes_in=5, totals="n"),
            Phase("b", "x+y", cost="quadratic:a=1,b=2", own="x", every_rank_nonempty=True, max_tokens_per_rank=9),
            Phase("c", "z", bytes_out=7),
        ),
        home="strided", drop_last=True, mode="auto", group_size=3, time_budget=0.5,
    )  # fmt: skip
    assert StepSettings.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    chosen = settings_of(micro_batches=MicroBatches(9, "step", 4, encoders="step"))
    assert StepSettings.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_per_rank": 0}, ["batch_per_rank", ">= 1"]),
        ({"home": "random"}, ["'random'", "contiguous"]),
        ({"method": "best"}, ["'best'", "auto"]),
        ({"time_budget": 0}, ["time_budget"]),
        ({"phases": ()}, ["at least one phase"]),
        ({"phases": (Phase("a", "x"), Phase("a", "y"))}, ["different names"]),
        ({"phases": (Phase("a", "x"), Phase("b", "f(y)"))}, ["unknown function of items 'f'"]),
        ({"phases": (Phase("a", "x"), Phase("b", "lengths(y)"))}, ["'b' computes whole samples"]),
        ({"phases": (Phase("a", "x", feeds="z"), Phase("b", "y"))}, ["must feed a later phase, got 'z'"]),
        ({"group_size": 2}, ["group_size must divide the 3 ranks"]),
        ({"mode": "both"}, ["mode must be one of"]),
    ],
)
def test_bad_settings_are_named_before_anything_is_read(change, words):
    with pytest.raises(ValueError, match=r".") as caught:
        settings_of(**change)
    for word in words:
        assert word in str(caught.value)


def test_errors_call_samples_by_their_rows(tmp_path):
    log = write_log(tmp_path)
    capped = (Phase("vision", "lengths(images)", max_tokens_per_rank=7), PHASES[2])
    with pytest.raises(
        InfeasibleError, match=r"log\.parquet: step 0: phase 'vision': item 6 \(of row 5\) has length 9"
    ):
        list(plan_steps(log, settings_of(phases=capped)))
    with pytest.raises(InputError, match=r"step 1: phase 'vision': .* of row 6 add up to 1, but audio is 2"):
        list(plan_steps(write_log(tmp_path, audio=[8, 0, 7, 6, 0, 9, *AUDIO[6:]]), settings_of(
            phases=(Phase("vision", "lengths(images)", totals="audio"), PHASES[2])
        )))  # fmt: skip
    with pytest.raises(InputError, match=r"column 'nowhere'"):
        list(plan_steps(log, settings_of(phases=(Phase("llm", "nowhere"),))))


# --- comparing -------------------------------------------------------------------------------------------------------


def test_every_strategy_sees_every_sample(tmp_path):
    log = write_log(tmp_path)
    seen = {name: [] for name in STRATEGIES}
    for strategy, plan in compare_log(log, settings_of(), window=2):
        seen[strategy].append(plan)
    for strategy, plans in seen.items():
        assert [plan.num_samples for plan in plans] == [6, 6, 1]
        lengths = [length for plan in plans for length in plan["llm"].lengths.tolist()]
        expected = [t + a for t, a in zip(TEXT, AUDIO, strict=True)]
        if strategy == "sorted_batches":
            first, second = (plan["llm"].lengths.tolist() for plan in plans[:2])
            assert max(first) <= min(second)
            assert sorted(lengths) == sorted(expected)
        else:
            assert lengths == expected
    direct = [plan.digest() for plan in plan_steps(log, settings_of())]
    assert [plan.digest() for plan in seen["orchestrated"]] == direct


def test_some_strategies_and_some_steps(tmp_path):
    log = write_log(tmp_path)
    found = [name for name, _ in compare_log(log, settings_of(), ["llm_only", "as_sampled"], num_steps=2, window=1)]
    assert found == ["llm_only", "as_sampled"] * 2
    with pytest.raises(ValueError, match="unknown strategy 'x'"):
        list(compare_log(log, settings_of(), ["x"]))
    with pytest.raises(ValueError, match="window must be >= 1"):
        list(compare_log(log, settings_of(), window=0))


# --- replaying -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plan.parquet", "plan/"])
@pytest.mark.parametrize("name", OPTIONS)
def test_replay_gives_the_same_plans(name, form, tmp_path):
    write_log(tmp_path)
    plans = write_plan(tmp_path, settings_of(**OPTIONS[name]), form)
    replayed = list(load_steps(f"{tmp_path}/{form}"))
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
@settings(max_examples=25)
def test_any_log_round_trips(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    write_log(folder, *(list(column) for column in zip(*rows, strict=True)))
    plans = write_plan(folder, settings_of())
    assert [p.digest() for p in load_steps(folder / "plan.parquet")] == [p.digest() for p in plans]


def test_rows_are_what_the_form_says(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    table = pq.read_table(tmp_path / "plan.parquet")
    assert table.column_names == ["step", "phase", "sample", "rank", "slot", "position", "item"]
    items = [(r["sample"], r["item"]) for r in table.to_pylist() if r["phase"] == "vision"]
    assert sorted(items) == [(s, j) for s, images in enumerate(IMAGES) for j in range(len(images))]
    assert sorted(r["sample"] for r in table.to_pylist() if r["phase"] == "llm") == list(range(len(TEXT)))
    write_plan(tmp_path, settings_of(phases=NUMBERS))
    assert "item" not in pq.read_table(tmp_path / "plan.parquet").column_names


def test_one_kind_of_file_names_the_loader_of_the_other(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    for load in (lambda p: list(balancer.load_plans(p)), lambda p: balancer.load_plan(p, 0), balancer.load_plan):
        with pytest.raises(InputError, match=r"plans several phases; use balancer\.load_steps"):
            load(tmp_path / "plan.parquet")
    balancer.balance([3, 4], 2).save(tmp_path / "one.parquet")
    with pytest.raises(InputError, match=r"plans one phase; use balancer\.load_plans"):
        list(load_steps(tmp_path / "one.parquet"))


def test_another_log_is_refused(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    write_log(tmp_path, text=[*TEXT[:-1], 5])
    with pytest.raises(InputError, match=r"was not made from .*log\.parquet: the log's SHA-256 differs"):
        list(load_steps(tmp_path / "plan.parquet"))


def of(rows, phase, step=0):
    return [row for row in rows if row["phase"] == phase and row["step"] == step]


def drop(phase, step=0, count=1):
    def change(rows):
        for row in of(rows, phase, step)[:count]:
            rows.remove(row)

    return change


def update(phase, which=0, **values):
    return lambda rows: of(rows, phase)[which].update(values)


def swap_ranks(rows):
    rows = of(rows, "vision")
    other = next(row for row in rows if row["rank"] != rows[0]["rank"])
    for key in ("rank", "position"):
        rows[0][key], other[key] = other[key], rows[0][key]


TAMPERINGS = {
    "two ranks swapped": (swap_ranks, r"digest"),
    "item dropped": (drop("vision"), r"step 0: phase 'vision': item 0 of sample 0 is not placed"),
    "sample dropped": (drop("llm"), r"step 0: phase 'llm': item 0 of sample 0 is not placed"),
    "phase dropped": (drop("vision", 0, 99), r"step 0: phase 'vision': item 0 of sample 0 is not placed"),
    "step dropped": (lambda rows: rows.__delitem__(slice(len(rows) - 3, None)), r"step 2 is missing"),
    "foreign item": (update("vision", item=7), r"step 0: phase 'vision': item 0 of sample 0 is not placed"),
    "negative item": (update("vision", item=-1), r"step 0: phase 'vision': item 0 of sample 0 is not placed"),
    "item of a whole sample": (update("llm", item=1), r"step 0: phase 'llm': item 0 of sample 0 is not placed"),
    "foreign sample": (update("audio", sample=99), r"step 0: phase 'audio': item 0 of sample 1 is not placed"),
    "item twice": (lambda rows: rows.insert(1, dict(rows[0])), r"'vision': items are placed twice"),
    "rank too large": (update("vision", rank=3), r"'vision': rank_of_sample\[0\] must be within 0..2, got 3"),
    "negative rank": (update("llm", rank=-1), r"'llm': rank_of_sample\[0\] must be within 0..2, got -1"),
    "position too large": (update("llm", position=99), r"'llm': position_of_sample\[0\] must be within"),
    "slot": (update("llm", slot=1), r"'llm': slot must be within 0..0, got 1"),
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
        list(load_steps(tmp_path / "plan.parquet"))


DESCRIPTIONS = {
    "no topology": (lambda d: d.pop("topology"), InputError, "not one this version reads"),
    "another batch": (lambda d: d.update(batch_per_rank=3), PlanError, "is not placed|placed twice"),
    "phases are no list": (lambda d: d.update(phases="vision"), InputError, "plans one phase"),
    "phase is no object": (lambda d: d["phases"].insert(0, 5), InputError, "not one this version reads"),
    "phase with an unknown field": (lambda d: d["phases"][0].update(x=5), InputError, "not one this version reads"),
    "no phases": (lambda d: d.update(phases=[]), InputError, "not one this version reads"),
    "unknown function": (lambda d: d["phases"][0].update(items="f(x)"), InputError, "not one this version reads"),
    "unknown column": (lambda d: d["phases"][1].update(items="x"), InputError, "column 'x'"),
    "other items": (lambda d: d["phases"][1].update(items="text"), PlanError, "'audio': item 0 of sample"),
    "no source": (lambda d: d.pop("source"), InputError, "does not name the log"),
    "source is a list": (lambda d: d.update(source=[]), InputError, "does not name the log"),
    "digest": (lambda d: d.update(digest="0"), PlanError, "the digest of its 3 steps is"),
    "no digest": (lambda d: d.pop("digest"), PlanError, "the digest of its 3 steps is"),
    "groups": (lambda d: d["solver"].update(group_size=1), PlanError, "leaves its group of 1 ranks"),
    "group size": (lambda d: d["solver"].update(group_size=0), InputError, "not one this version reads"),
    "cap": (lambda d: d["phases"][0].update(max_tokens_per_rank=10), PlanError, "tokens, cap 10"),
    "cap of no use": (lambda d: d["phases"][0].update(max_tokens_per_rank=2), InfeasibleError, "has length"),
    "counts": (lambda d: d["phases"][2].update(equal_counts=True), PlanError, "counts are not equal"),
    "micro-batches": (lambda d: d.update(micro_batches={"max_tokens": 9}), PlanError, "tokens, cap 9"),
    "micro-batches of text": (lambda d: d.update(micro_batches="x"), InputError, "not one this version reads"),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_tampered_descriptions(name, tmp_path):
    change, kind, message = DESCRIPTIONS[name]
    write_log(tmp_path, text=[30, *TEXT[1:]])
    write_plan(tmp_path, settings_of())
    tamper(tmp_path / "plan.parquet", description=change)
    with pytest.raises(kind, match=message):
        list(load_steps(tmp_path / "plan.parquet"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (update("llm", slot=2**31 - 1), "cannot be in .* micro-batches|slot must be within"),
        (update("llm", slot=-1), "slot must be within 0"),
        (update("vision", slot=99), "slot must be within 0"),
        (lambda rows: [row.update(slot=1) for row in of(rows, "vision")], "in slot 1, after its sample"),
        (lambda rows: [row.update(slot=0) for row in of(rows, "vision")], "digest"),
    ],
)
def test_tampered_slots(change, message, tmp_path):
    write_log(tmp_path)
    plans = write_plan(tmp_path, settings_of(micro_batches=MicroBatches(25, at_least=2), drop_last=True))
    assert plans[0].num_slots == 2
    tamper(tmp_path / "plan.parquet", rows=change)
    with pytest.raises(PlanError, match=message):
        list(load_steps(tmp_path / "plan.parquet"))


def test_a_file_without_items(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    table = pq.read_table(tmp_path / "plan.parquet")
    pq.write_table(table.drop_columns(["item"]), tmp_path / "plan.parquet")
    with pytest.raises(PlanError, match="has no column 'item'"):
        list(load_steps(tmp_path / "plan.parquet"))


def test_a_damaged_file(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    path = tmp_path / "plan.parquet"
    whole = path.read_bytes()
    for cut in np.linspace(0, len(whole) - 1, 12).astype(int):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError):
            list(load_steps(path))
    for at in range(4, len(whole) - 8, 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(InputError, PlanError):
            list(load_steps(path))
