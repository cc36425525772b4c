"""Logs planned in several phases, and plan files of several phases taken at their word only as far as it holds."""

import contextlib
import copy
import dataclasses
import functools
import json

import numpy as np
import plan_files
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from plan_files import tamper
from step_cases import cases

import balancer
from balancer import InputError, MicroBatches, Phase, PlanError, Ragged, Topology, load_steps, orchestrate
from balancer.io.logs import open_log
from balancer.offline.settings import LogSettings
from balancer.offline.steps import compare_log, plan_log
from balancer.planning.strategies import STRATEGIES, plan_with
from balancer.problem.batch import HOMES
from balancer.problem.phases import resolve_phases
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
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
    of_log = {name: others.pop(name) for name in ("home", "drop_last") if name in others}
    return LogSettings(Setup(Topology(topology), phases, PlanSettings(**others)), batch_per_rank, **of_log)


def write_plan(folder, chosen, name="plan.parquet"):
    return plan_files.write_plan(f"{folder}/{name}", open_log(folder / "log.parquet"), chosen)


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


@given(cases(), st.lists(st.integers(0, 10), min_size=2, max_size=2).map(sorted))
@settings(max_examples=examples(40))
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
@settings(max_examples=examples(20))
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
            Phase("a", "lengths(images)", outputs="lengths(images)", feeds="b", bytes_in=5, totals="n"),
            Phase("b", "x+y", cost="quadratic:a=1,b=2", own="x", every_rank_nonempty=True, max_tokens_per_rank=9),
            Phase("c", "z", bytes_out=7),
        ),
        home="strided", drop_last=True, mode="auto", group_size=3, time_budget=0.5,
    )  # fmt: skip
    assert LogSettings.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    chosen = settings_of(micro_batches=MicroBatches(9, "step", 4, encoders="step"))
    assert LogSettings.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen


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
        list(plan_log(log, settings_of(phases=capped)))
    with pytest.raises(InputError, match=r"step 1: phase 'vision': .* of row 6 add up to 1, but audio is 2"):
        list(plan_log(write_log(tmp_path, audio=[8, 0, 7, 6, 0, 9, *AUDIO[6:]]), settings_of(
            phases=(Phase("vision", "lengths(images)", totals="audio"), PHASES[2])
        )))  # fmt: skip
    with pytest.raises(InputError, match=r"column 'nowhere'"):
        list(plan_log(log, settings_of(phases=(Phase("llm", "nowhere"),))))


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
    direct = [plan.digest() for plan in plan_log(log, settings_of())]
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
@settings(max_examples=examples(25))
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


def test_load_plan_gives_the_steps_of_several_phases(tmp_path):
    write_log(tmp_path)
    plans = write_plan(tmp_path, settings_of())
    loaded = balancer.load_plan(tmp_path / "plan.parquet", 1)
    assert isinstance(loaded, balancer.StepPlan)
    assert loaded.digest() == plans[1].digest()
    with pytest.raises(InputError, match=r"plan\.parquet: holds 3 steps; say which"):
        balancer.load_plan(tmp_path / "plan.parquet")
    with pytest.raises(InputError, match=r"plans several phases \(vision, audio, llm\); use balancer\.load_steps"):
        list(balancer.load_plans(tmp_path / "plan.parquet"))


def test_load_steps_reads_files_of_one_phase(tmp_path):
    plan = balancer.balance([3, 4, 5], 2)
    plan.save(tmp_path / "one.parquet")
    (step,) = load_steps(tmp_path / "one.parquet")
    assert list(step.phases) == ["all"]
    assert (step["all"], step.digest()) == (plan, plan.digest())
    assert [found.digest() for found in balancer.load_plans(tmp_path / "one.parquet")] == [plan.digest()]


def test_another_log_is_refused(tmp_path):
    write_log(tmp_path)
    write_plan(tmp_path, settings_of())
    write_log(tmp_path, text=[*TEXT[:-1], 5])
    with pytest.raises(InputError, match=r"was not made from .*log\.parquet: the log's size or SHA-256 differs"):
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
    "sample dropped": (drop("llm"), r"step 0: phase 'llm': sample 0 is not placed"),
    "phase dropped": (drop("vision", 0, 99), r"step 0: phase 'vision': item 0 of sample 0 is not placed"),
    "step dropped": (lambda rows: rows.__delitem__(slice(len(rows) - 3, None)), r"step 2 is missing"),
    "foreign item": (update("vision", item=7), r"step 0: phase 'vision': item 0 of sample 0 is not placed"),
    "negative item": (update("vision", item=-1), r"step 0: phase 'vision': item 0 of sample 0 is not placed"),
    "item of a whole sample": (update("llm", item=1), r"step 0: phase 'llm': sample 0 is not placed"),
    "foreign sample": (update("audio", sample=99), r"step 0: phase 'audio': item 0 of sample 1 is not placed"),
    "item twice": (lambda rows: rows.insert(1, dict(rows[0])), r"'vision': items are placed twice"),
    "rank too large": (update("vision", rank=3), r"'vision': rank_of_sample\[0\] must be within 0..2, got 3"),
    "negative rank": (update("llm", rank=-1), r"'llm': rank_of_sample\[0\] must be within 0..2, got -1"),
    "position too large": (update("llm", position=99), r"'llm': position_of_sample\[0\] must be within"),
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
        list(load_steps(tmp_path / "plan.parquet"))


def cut_at(description, tokens, **rules):
    """Claim micro-batches, in full as a description has them."""
    description["settings"].update(micro_batches=MicroBatches(tokens, **rules).to_json())


DESCRIPTIONS = {
    "no topology": (lambda d: d.pop("topology"), InputError, "not one this version reads"),
    "another batch": (lambda d: d.update(batch_per_rank=3), PlanError, "is not placed|placed twice"),
    "phases are no list": (lambda d: d.update(phases="vision"), InputError, "not one this version reads"),
    "phase is no object": (lambda d: d["phases"].insert(0, 5), InputError, "not one this version reads"),
    "phase with an unknown field": (lambda d: d["phases"][0].update(x=5), InputError, "not one this version reads"),
    "no phases": (lambda d: d.update(phases=[]), InputError, "not one this version reads"),
    "unknown function": (lambda d: d["phases"][0].update(items="f(x)"), InputError, "not one this version reads"),
    "unknown column": (lambda d: d["phases"][1].update(items="x"), InputError, "column 'x'"),
    "other items": (lambda d: d["phases"][1].update(items="text"), PlanError, "'audio': item 0 of sample"),
    "no source": (lambda d: d.pop("sources"), InputError, "does not name the log"),
    "sources are none": (lambda d: d.update(sources=[]), InputError, "does not name the log"),
    "sources are text": (lambda d: d.update(sources="log.parquet"), InputError, "does not name the log"),
    "source is text": (lambda d: d.update(sources=["log.parquet"]), InputError, "does not name the log"),
    "source without a file": (lambda d: d["sources"][0].pop("file"), InputError, "does not name the log"),
    "two sources": (lambda d: d["sources"].append(d["sources"][0]), InputError, "does not name the log"),
    "another SHA-256": (lambda d: d["sources"][0].update(sha256="0"), InputError, "the log's size or SHA-256 differs"),
    "digest": (lambda d: d.update(digest="0"), PlanError, "the digest of its 3 steps is"),
    "no digest": (lambda d: d.pop("digest"), PlanError, "the digest of its 3 steps is"),
    "groups": (lambda d: d["settings"].update(group_size=1), PlanError, "leaves its group of 1 ranks"),
    "group size": (lambda d: d["settings"].update(group_size=0), InputError, "not one this version reads"),
    "cap": (lambda d: d["phases"][0].update(max_tokens_per_rank=10), PlanError, "tokens, cap 10"),
    "cap of no use": (lambda d: d["phases"][0].update(max_tokens_per_rank=2), InfeasibleError, "has length"),
    "counts": (lambda d: d["phases"][2].update(equal_counts=True), PlanError, "counts are not equal"),
    "micro-batches": (lambda d: cut_at(d, 9, over_long="own"), PlanError, "tokens, cap 9"),
    "micro-batches of no use": (lambda d: cut_at(d, 9), InfeasibleError, "sample 0 has length 30, 21 more than"),
    "micro-batches of text": (lambda d: d["settings"].update(micro_batches="x"), InputError, "this version reads"),
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
        (update("llm", slot=-1), "slot must be >= 0, got -1"),
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


# --- a step plan saved by itself -------------------------------------------------------------------------------------

SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def any_step(rng):
    """Arguments of `orchestrate`: outputs and own given or not, a phase between, micro-batches, left-out samples."""
    n, ranks = int(rng.integers(0, 7)), int(rng.integers(1, 4))
    lists = {name: [rng.integers(1, 9, rng.integers(0, 4)).tolist() for _ in range(n)] for name in ("images", "pieces")}
    columns = {name: rng.integers(0, 9, n).tolist() for name in ("audio", "tokens", "mid", "text", "key")}
    columns |= {name: balancer.Ragged.of(rows) for name, rows in lists.items()}
    columns["out"] = balancer.Ragged.of([[length + 1 for length in row] for row in lists["images"]])
    between = rng.random() < 0.4
    cut, mode = None, str(rng.choice(["separate", "auto", "joint"]))
    if rng.random() < 0.6:
        cut = MicroBatches(
            int(rng.integers(3, 12)), str(rng.choice(["lockstep", "step", "pipeline"])), over_long="drop",
            at_least=int(rng.integers(1, 4)), allow_empty=True, encoders=str(rng.choice(["slot", "step"])),
        )  # fmt: skip
    phases = [
        Phase("vision", "lengths(images)", outputs=rng.choice([None, "lengths(out)"]), bytes_in=3, bytes_out=2,
              feeds="mid" if between else None),
        *([Phase("mid", "mid", own=rng.choice([None, "tokens"]))] if between else []),
        Phase("audio", "audio", outputs=rng.choice([None, "tokens+audio"])),
        Phase("llm", "text", own=rng.choice([None, "tokens", "lengths(pieces)"]), cost=rng.choice(["linear", "padded"])
              if cut is None else "quadratic:a=2,b=1", keep_together=rng.choice([None, "key"]) if cut else None),
    ]  # fmt: skip
    sizes = [1] * ranks if rng.random() < 0.5 else [ranks]
    homes = rng.integers(0, ranks, n).tolist()
    asked = {"home_rank": homes, "micro_batches": cut, "mode": mode, "time_budget": 0.001}
    if cut is None and rng.random() < 0.2:
        asked["group_size"] = 1
    return (columns, phases, Topology(sizes)), asked


def in_any_order(rng, plan):
    """An order in which the last phase reads the parts of each sample."""
    counts = np.bincount(plan.parts["llm"].sample_of_part, minlength=plan.num_samples)
    return balancer.Ragged.of([rng.permutation(count).tolist() for count in counts.tolist()])


def assert_the_same(found, plan):
    """Everything that a step plan tells."""
    assert (found.digest(), found.setup, found.strategy) == (plan.digest(), plan.setup, plan.strategy)
    assert (found.num_samples, found.batch_size, found.num_slots) == (plan.num_samples, plan.batch_size, plan.num_slots)
    assert found.batch.dropped.tolist() == plan.batch.dropped.tolist()
    assert found.batch.dropped_lengths.tolist() == plan.batch.dropped_lengths.tolist()
    assert found.home == plan.home
    assert list(found.phases) == list(plan.phases)
    for name in plan.phases:
        mine, theirs = found[name], plan[name]
        assert (mine.target, mine.home, mine.num_slots) == (theirs.target, theirs.home, theirs.num_slots)
        assert (mine.slot_of_sample == theirs.slot_of_sample).all()
        assert (mine.loads.tolist(), mine.home_loads.tolist()) == (theirs.loads.tolist(), theirs.home_loads.tolist())
        certificates = [(p.makespan, p.fell_back, p.placement, p.method, p.micro_batches) for p in (mine, theirs)]
        assert certificates[0] == certificates[1]
        if not theirs.constraints.per_sample:  # without which its bound may not be proven again
            bounds = [(p.lower_bound, p.bound_name, p.status) for p in (mine, theirs)]
            assert bounds[0] == bounds[1]
        assert mine.lower_bound <= theirs.makespan
    assert list(found.streams) == list(plan.streams)
    for name, stream in plan.streams.items():
        again = found.streams[name]
        assert (again.source, again.target) == (stream.source, stream.target)
        assert again.lengths.tolist() == stream.lengths.tolist()
        assert again.bytes_of_item.tolist() == stream.bytes_of_item.tolist()
    for name, parts in plan.parts.items():
        assert found.parts[name].streams == parts.streams
        for mine, theirs in zip(found.parts[name][1:], parts[1:], strict=True):
            assert mine.tolist() == theirs.tolist()
        for rank in range(plan.num_ranks):
            assert found.inputs_of(name).exchange(rank) == plan.inputs_of(name).exchange(rank)


@given(rng=SEEDS)
def test_a_saved_step_plan_is_the_step_plan(rng, tmp_path_factory):
    arguments, asked = any_step(rng)
    plan = orchestrate(*arguments, **asked)
    if rng.random() < 0.5:
        plan = orchestrate(*arguments, **asked, part_order=in_any_order(rng, plan))
    path = tmp_path_factory.mktemp("saved") / "step.parquet"
    plan.save(path)
    (loaded,) = load_steps(path)
    assert_the_same(loaded, plan)
    alone = balancer.load_plan(path)
    assert alone.digest() == plan.digest()
    assert isinstance(alone, balancer.StepPlan)
    loaded.save(path)  # what is loaded is as good as what was planned
    assert_the_same(balancer.load_plan(path), loaded)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("cut", [None, MicroBatches(9, over_long="own", allow_empty=True)], ids=["whole", "cut"])
def test_the_plan_of_any_strategy_can_be_saved(strategy, cut, tmp_path):
    batch = {"images": balancer.Ragged.of(IMAGES), "text": TEXT, "audio": AUDIO}
    plan = plan_with(strategy, batch, PHASES, Topology((2, 1)), micro_batches=cut)
    plan.save(tmp_path / "step.parquet")
    assert_the_same(balancer.load_plan(tmp_path / "step.parquet"), plan)


@pytest.fixture
def saved(tmp_path):
    """A plan with everything that a file holds of it."""
    batch = {"images": balancer.Ragged.of(IMAGES), "text": TEXT, "audio": AUDIO}
    batch["out"] = balancer.Ragged.of([[length + 1 for length in row] for row in IMAGES])
    phases = [
        Phase("vision", "lengths(images)", outputs="lengths(out)"), Phase("audio", "audio"),
        Phase("llm", "text", own="lengths(images)"),
    ]  # fmt: skip
    cut = MicroBatches(8, over_long="drop", encoders="slot")
    asked = {"home_rank": [s % 3 for s in range(len(TEXT))], "micro_batches": cut}
    plan = orchestrate(batch, phases, Topology((2, 1)), **asked)
    assert 0 < len(plan.batch.dropped) < len(TEXT)
    plan = orchestrate(
        batch, phases, Topology((2, 1)), part_order=in_any_order(np.random.default_rng(0), plan), **asked
    )
    plan.save(tmp_path / "step.parquet")
    assert balancer.load_plan(tmp_path / "step.parquet").digest() == plan.digest()
    return tmp_path / "step.parquet"


SAVED_ROWS = {
    "two ranks swapped": swap_ranks,
    "an item dropped": drop("vision"),
    "a sample dropped": drop("llm"),
    "a phase dropped": drop("audio", count=99),
    "the last phase dropped": drop("llm", count=99),
    "an item of another sample": update("vision", sample=2),
    "a sample twice": update("llm", sample=1),
    "another item": update("vision", item=5),
    "another rank": lambda rows: of(rows, "llm")[0].update(rank=(of(rows, "llm")[0]["rank"] + 1) % 3),
    "a rank that is not there": update("llm", rank=9),
    "another position": update("vision", position=7),
    "another slot": lambda rows: of(rows, "audio")[0].update(slot=of(rows, "audio")[0]["slot"] + 1),
    "a slot that is not there": update("llm", slot=99),
    "another home": update("llm", home_rank=2),
    "a home that is not there": update("vision", home_rank=-1),
    "a negative length": update("audio", length=-2),
    "a length over the cap": update("llm", length=10**6),
    "an unknown phase": lambda rows: rows[0].update(phase="x"),
    "another step": lambda rows: rows[-1].update(step=3),
}


@pytest.mark.parametrize("name", SAVED_ROWS)
def test_a_saved_step_plan_with_other_rows_is_refused(name, saved):
    tamper(saved, rows=SAVED_ROWS[name])
    with pytest.raises((PlanError, InputError)) as caught:
        balancer.load_plan(saved)
    assert "step.parquet: " in str(caught.value)


def certify(phase, **claims):
    return lambda d: d["saved"][phase]["certificate"].update(claims)


SAVED_CLAIMS = {
    "a bound above the makespan": (certify("llm", lower_bound=10**6), "claims lower_bound = 1000000"),
    "a bound that no formula gives": (certify("vision", lower_bound=0, status="optimal"), "claims status 'optimal'"),
    "a negative bound": (certify("audio", lower_bound=-1), r"whole numbers from 0, got \[.*-1\]"),
    "a bound of text": (certify("audio", lower_bound="8"), "whole numbers from 0, got"),
    "a bound of another number": (certify("audio", lower_bound=True), "whole numbers from 0, got"),
    "a bound by nothing": (certify("audio", bound_name=None), "bound_name and fell_back must be text"),
    "another makespan": (certify("llm", makespan=3), "samples and makespans must be"),
    "a makespan past int64": (certify("llm", makespan=2**70), "whole numbers from 0, got"),
    "more samples": (lambda d: d.update(samples=12), "samples and makespans must be"),
    "no number of samples": (lambda d: d.pop("samples"), "samples and makespans must be"),
    "another strategy": (lambda d: d.update(strategy="best"), "unknown strategy 'best'; known ones are"),
    "no strategy": (lambda d: d.update(strategy=None), "unknown strategy None"),
    "a reason that is no text": (lambda d: d["saved"]["llm"].update(fell_back=7), "must be text"),
    "a constraint that no row shows": (lambda d: d["phases"][2].update(keep_together="x"), "cannot be checked"),
    "a constraint that nobody knows": (lambda d: d["saved"]["llm"].update(left_out=["luck"]), "left_out must be of"),
    "left out as text": (lambda d: d["saved"]["llm"].update(left_out="caps"), "left_out must be of"),
    "bytes past int64": (lambda d: d["saved"]["vision"]["outputs"].__setitem__(0, 2**63 - 1), "bytes in all; must be"),
    "own bytes past int64": (lambda d: d["saved"]["llm"]["own"][0].__setitem__(0, 2**63 - 1), "bytes in all; must be"),
    "outputs past int64": (lambda d: d["saved"]["vision"]["outputs"].__setitem__(0, 2**70), "whole numbers from 0"),
    "outputs in fractions": (lambda d: d["saved"]["vision"]["outputs"].__setitem__(0, 3.5), "whole numbers from 0"),
    "outputs that are lengths": (lambda d: d["saved"]["vision"].update(outputs=None), "must have outputs in the file"),
    "outputs nobody asks for": (lambda d: d["saved"]["audio"].update(outputs=[1] * 4), "must have outputs in the file"),
    "own that is by default": (lambda d: d["saved"]["llm"].update(own=None), "must have own in the file"),
    "negative own": (lambda d: d["saved"]["llm"]["own"][0].__setitem__(0, -1), "whole numbers from 0"),
    "left out though it fits": (lambda d: d["dropped"][0].__setitem__(1, 8), "not over the cap of 8"),
    "an unknown status": (certify("llm", status="perfect"), "not one this version reads"),
    "no certificate": (lambda d: d["saved"]["llm"].pop("certificate"), "not one this version reads"),
    "no phase": (lambda d: d["saved"].pop("vision"), "not one this version reads"),
    "no claims": (lambda d: d.pop("saved"), "not one this version reads"),
    "too few outputs": (lambda d: d["saved"]["vision"]["outputs"].pop(), "step.parquet"),
    "negative outputs": (lambda d: d["saved"]["vision"]["outputs"].__setitem__(0, -9), "step.parquet"),
    "outputs of text": (lambda d: d["saved"]["vision"].update(outputs="x"), "not one this version reads"),
    "own of too few samples": (lambda d: d["saved"]["llm"]["own"][1].pop(), "step.parquet"),
    "own that is no list": (lambda d: d["saved"]["llm"].update(own=7), "not one this version reads"),
    "an order that is none": (lambda d: d["part_order"][0].__setitem__(0, 99), "part_order of sample 0 must be"),
    "an order of too few": (lambda d: d["part_order"][1].pop(), "step.parquet"),
    "an order of text": (lambda d: d.update(part_order="x"), "not one this version reads"),
    "nothing left out": (lambda d: d.update(dropped=[]), "is not placed|digest"),
    "others left out": (lambda d: d["dropped"][0].__setitem__(0, 0), "is not placed|digest"),
    "left out without being asked to": (
        lambda d: d["settings"]["micro_batches"].update(over_long="own"),
        "samples are left out, but not because over_long='drop' asks for it",
    ),
    "another cap": (lambda d: d["settings"]["micro_batches"].update(max_tokens=6), "over|tokens, cap 6|length"),
    "another topology": (lambda d: d["topology"].update(node_sizes=[1, 2]), "digest"),
    "another phase": (lambda d: d["phases"][1].update(name="sound"), "not one this version reads|does not name"),
    "a constraint": (lambda d: d["phases"][2].update(max_samples_per_rank=1), "phase 'llm': rank . holds . samples"),
    "no digest": (lambda d: d.pop("digest"), "the plan's digest is"),
    "another digest": (lambda d: d.update(digest="0" * 64), "the plan's digest is"),
}


@pytest.mark.parametrize("name", SAVED_CLAIMS)
def test_a_saved_step_plan_that_claims_otherwise_is_refused(name, saved):
    change, message = SAVED_CLAIMS[name]
    tamper(saved, description=change)
    with pytest.raises((PlanError, InputError), match=message) as caught:
        balancer.load_plan(saved)
    assert "step.parquet: " in str(caught.value)


def entries(found, path=()):
    """Where every value in a description stands, and the value."""
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in inner:
        yield (*path, key), value
        yield from entries(value, (*path, key))


def others_than(value):
    """What JSON may hold in place of a value."""
    if isinstance(value, bool) or value is None:
        return [not value, 1, "x", []]
    if isinstance(value, int | float):
        return [value + 1, value - 1, 0.5, 2**62, 2**70, str(value), None]
    return [value + value[:1], value[1:], None, 7] if isinstance(value, str | list) else [None, [], {}]


ASKED = {"eps", "time_budget", "max_tokens", "at_least", "multiple_of", "allow_empty", "count", "bytes_in", "bytes_out"}
NAMES = {"items", "outputs", "own", "totals", "producer", "bound_name", "fell_back"}
LESS = {"lower_bound", "every_rank_nonempty", "equal_counts", "min_samples_per_rank", "left_out", "part_order"}
LESS |= {"dropped", "strategy"}


@pytest.mark.parametrize("resealed", [False, True], ids=["as written", "sealed again"])
def test_a_saved_step_plan_with_any_entry_changed(resealed, saved):
    """It is refused; sealed again, only what its rows do not tell or tell less exactly may be otherwise."""
    table, header, plan = pq.read_table(saved), plan_files.header_of(saved), balancer.load_plan(saved)
    for path, value in list(entries(header["description"])):
        for other in (other for other in others_than(value) if other != value):
            changed = copy.deepcopy(header)
            functools.reduce(lambda at, key: at[key], path[:-1], changed["description"])[path[-1]] = other
            pq.write_table(table, saved)
            plan_files.with_header(saved, plan_files.sealed(changed) if resealed else changed)
            try:
                found = balancer.load_plan(saved)
            except (PlanError, InputError, InfeasibleError):
                continue
            assert resealed, path
            assert found.digest() == plan.digest()
            assert [found[name].makespan for name in found.phases] == [plan[name].makespan for name in plan.phases]
            assert all(found[name].lower_bound <= found[name].makespan for name in found.phases)
            assert (ASKED | NAMES | LESS) & set(path), (path, value, other)


def test_a_plan_whose_samples_lie_in_another_order_cannot_be_saved(tmp_path):
    """A plan file tells on which rank a sample lies, but not where there: of the way back, say."""
    back = balancer.balance([3, 4, 5], 2, placement="any").inverse()
    home = balancer.Placement.checked([0, 0, 1], 2, [1, 0, 0])
    with pytest.raises(PlanError, match="home must be in sample order"):
        dataclasses.replace(back, home=home).save(tmp_path / "plan.parquet")
    assert list(tmp_path.iterdir()) == []
