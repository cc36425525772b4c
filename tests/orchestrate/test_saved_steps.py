"""A step plan saved by itself: read back as it was, and taken at its word only as far as it holds."""

import copy
import dataclasses
import functools

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from phases_plan import AUDIO, IMAGES, PHASES, TEXT, drop, of, swap_ranks, update
from plan_files import header_of, sealed, tamper, with_header

import balancer
from balancer import InputError, MicroBatches, Phase, PlanError, Topology, orchestrate
from balancer.offline.load import checked_steps
from balancer.strategies import STRATEGIES, plan_with
from solvers import InfeasibleError

SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def any_step(rng):
    """Arguments of `orchestrate`: outputs and own given or not, micro-batches."""
    n, ranks = int(rng.integers(0, 7)), int(rng.integers(1, 4))
    lists = {name: [rng.integers(1, 9, rng.integers(0, 4)).tolist() for _ in range(n)] for name in ("images", "pieces")}
    columns = {name: rng.integers(0, 9, n).tolist() for name in ("audio", "tokens", "text", "key")}
    columns |= {name: balancer.Ragged.of(rows) for name, rows in lists.items()}
    columns["out"] = balancer.Ragged.of([[length + 1 for length in row] for row in lists["images"]])
    cut, mode = None, str(rng.choice(["separate", "joint"]))
    if rng.random() < 0.6:
        cut = MicroBatches(
            int(rng.integers(3, 12)), str(rng.choice(["micro_batch", "step", "pipeline"])), over_long="own",
            at_least=int(rng.integers(1, 4)), allow_empty=True, encoders=str(rng.choice(["slot", "step"])),
        )  # fmt: skip
    phases = [
        Phase("vision", "images", outputs=rng.choice([None, "out"]), bytes_in=3, bytes_out=2),
        Phase("audio", "audio", outputs=rng.choice([None, "tokens+audio"])),
        Phase("llm", "text", own=rng.choice([None, "tokens", "pieces"]), cost=rng.choice(["linear", "padded"])
              if cut is None else "quadratic:a=2,b=1", keep_together=rng.choice([None, "key"]) if cut else None),
    ]  # fmt: skip
    sizes = [1] * ranks if rng.random() < 0.5 else [ranks]
    homes = rng.integers(0, ranks, n).tolist()
    asked = {"home_rank": homes, "cut": cut, "mode": mode, "time_budget": 0.001}
    if cut is None and rng.random() < 0.2:
        asked["group_size"] = 1
    return (columns, phases, Topology(sizes)), asked


def assert_the_same(found, plan):
    """Everything that a step plan tells."""
    assert (found.digest(), found.setup, found.strategy) == (plan.digest(), plan.setup, plan.strategy)
    assert (found.num_samples, found.num_slots) == (plan.num_samples, plan.num_slots)
    assert found.home == plan.home
    assert list(found.phases) == list(plan.phases)
    for name in plan.phases:
        mine, theirs = found[name], plan[name]
        assert (mine.target, mine.home, mine.num_slots) == (theirs.target, theirs.home, theirs.num_slots)
        assert (mine.slot_of_sample == theirs.slot_of_sample).all()
        assert (mine.loads.tolist(), mine.home_loads.tolist()) == (theirs.loads.tolist(), theirs.home_loads.tolist())
        certificates = [(p.makespan, p.fell_back, p.placement, p.method, p.cut) for p in (mine, theirs)]
        assert certificates[0] == certificates[1]
        if set(theirs.constraints.per_sample) <= {"keep_together"}:  # without others its bound may not be proven again
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
@settings(max_examples=examples(12))
def test_a_saved_step_plan_is_the_step_plan(rng, tmp_path_factory):
    arguments, asked = any_step(rng)
    plan = orchestrate(*arguments, **asked)
    path = tmp_path_factory.mktemp("saved") / "step.parquet"
    plan.save(path)
    (loaded,) = checked_steps(path)
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
    plan = plan_with(strategy, batch, PHASES, Topology((2, 1)), cut=cut)
    plan.save(tmp_path / "step.parquet")
    assert_the_same(balancer.load_plan(tmp_path / "step.parquet"), plan)


@pytest.fixture
def saved(tmp_path):
    """A plan with everything that a file holds of it."""
    batch = {"images": balancer.Ragged.of(IMAGES), "text": TEXT, "audio": AUDIO}
    batch["out"] = balancer.Ragged.of([[length + 1 for length in row] for row in IMAGES])
    phases = [
        Phase("vision", "images", outputs="out"), Phase("audio", "audio"),
        Phase("llm", "text", own="images"),
    ]  # fmt: skip
    cut = MicroBatches(8, over_long="own", encoders="slot")
    asked = {"home_rank": [s % 3 for s in range(len(TEXT))], "cut": cut}
    plan = orchestrate(batch, phases, Topology((2, 1)), **asked)
    plan.save(tmp_path / "step.parquet")
    assert balancer.load_plan(tmp_path / "step.parquet").digest() == plan.digest()
    return tmp_path / "step.parquet"


SAVED_ROWS = {
    "two ranks swapped": swap_ranks,
    "an item dropped": drop("vision"),
    "a phase dropped": drop("audio", count=99),
    "an item of no sample": update("vision", sample=99),
    "another rank": lambda rows: of(rows, "llm")[0].update(rank=(of(rows, "llm")[0]["rank"] + 1) % 3),
    "another position": update("vision", position=7),
    "another slot": lambda rows: of(rows, "audio")[0].update(slot=of(rows, "audio")[0]["slot"] + 1),
    "a slot that is not there": update("llm", slot=99),
    "another home": update("llm", home_rank=2),
    "a negative length": update("audio", length=-2),
    "a length over the cap": update("llm", length=10**6),
    "another step": lambda rows: rows[-1].update(step=3),
}


@pytest.mark.parametrize("name", SAVED_ROWS)
def test_a_saved_step_plan_with_other_rows_is_refused(name, saved):
    tamper(saved, rows=SAVED_ROWS[name])
    with pytest.raises((PlanError, InputError)) as caught:
        balancer.load_plan(saved)
    assert "step.parquet: " in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (update("vision", sample=99), "phase 'vision' has items of samples that are in no phase after it"),
        (update("audio", length=-2), r"phase 'audio': lengths\[0\] must be >= 0, got -2"),
    ],
)
def test_rows_of_items_that_are_none_are_named(change, said, saved):
    tamper(saved, rows=change)
    with pytest.raises(InputError, match=said):
        balancer.load_plan(saved)


def certify(phase, **claims):
    return lambda d: d["saved"][phase]["certificate"].update(claims)


SAVED_CLAIMS = {
    "a bound above the makespan": (certify("llm", lower_bound=10**6), "claims lower_bound = 1000000"),
    "a status for no gap": (certify("vision", status="within"), "claims status 'within'"),
    "a negative bound": (certify("audio", lower_bound=-1), r"whole numbers from 0, got \[.*-1\]"),
    "a bound by nothing": (certify("audio", bound_name=None), "bound_name and fell_back must be text"),
    "another makespan": (certify("llm", makespan=3), "samples and makespans must be"),
    "more samples": (lambda d: d.update(samples=12), "samples and makespans must be"),
    "another strategy": (lambda d: d.update(strategy="best"), "unknown strategy 'best'; known ones are"),
    "a reason that is no text": (lambda d: d["saved"]["llm"].update(fell_back=7), "must be text"),
    "a constraint that no row shows": (lambda d: d["phases"][2].update(keep_together="x"), "cannot be checked"),
    "a constraint that nobody knows": (lambda d: d["saved"]["llm"].update(left_out=["luck"]), "left_out must be of"),
    "bytes past int64": (lambda d: d["saved"]["vision"]["outputs"].__setitem__(0, 2**63 - 1), "bytes in all; must be"),
    "outputs in fractions": (lambda d: d["saved"]["vision"]["outputs"].__setitem__(0, 3.5), "whole numbers from 0"),
    "outputs that are lengths": (lambda d: d["saved"]["vision"].update(outputs=None), "must have outputs in the file"),
    "an unknown status": (certify("llm", status="perfect"), "not one this version reads"),
    "no claims": (lambda d: d.pop("saved"), "not one this version reads"),
    "own of too few samples": (lambda d: d["saved"]["llm"]["own"][1].pop(), "step.parquet"),
    "negative outputs": (lambda d: d["saved"]["vision"]["outputs"].__setitem__(0, -9), "step.parquet"),
    "own of a sample too few": (
        lambda d: d["saved"]["llm"].update(own=[[], [0]]),
        "must have own lengths of each of its",
    ),
    "own that is no list": (lambda d: d["saved"]["llm"].update(own=7), "not one this version reads"),
    "another cap": (lambda d: d["settings"]["cut"].update(tokens=5), "over|tokens, cap 5|length"),
    "another topology": (lambda d: d["topology"].update(node_sizes=[1, 2]), "digest"),
    "another phase": (lambda d: d["phases"][1].update(name="sound"), "not one this version reads|does not name"),
    "a constraint": (lambda d: d["phases"][2].update(max_samples_per_rank=1), "phase 'llm': rank . holds . samples"),
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
    """Where every value in a description stands, and the value; by day of a list of numbers the first and the last."""
    inner = list(found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ())
    if isinstance(found, list) and not any(isinstance(value, str | dict) for value in found) and examples(1) == 1:
        inner = inner[:1] + inner[1:][-1:]
    for key, value in inner:
        yield (*path, key), value
        yield from entries(value, (*path, key))


def others_than(value):
    """What JSON may hold in place of a value."""
    if isinstance(value, bool) or value is None:
        return [not value, 1, "x", []]
    if isinstance(value, int | float):
        found = [value - 1, 2**70, str(value), value + 1, 0.5, 2**62, None]
        return found if examples(1) > 1 else found[:3]
    return [value + value[:1], value[1:], None, 7] if isinstance(value, str | list) else [None, [], {}]


ASKED = {
    "eps", "time_budget", "stop_at", "tokens", "at_least", "multiple_of", "allow_empty", "count", "bytes_in",
    "bytes_out",
}  # fmt: skip
NAMES = {"length", "outputs", "own", "producer", "bound_name", "fell_back"}
LESS = {"lower_bound", "every_rank_nonempty", "equal_counts", "min_samples_per_rank", "left_out", "strategy"}


@pytest.mark.more_by_night
@pytest.mark.parametrize("resealed", [False, True], ids=["as written", "sealed again"])
def test_a_saved_step_plan_with_any_entry_changed(resealed, saved):
    """It is refused; sealed again, only what its rows do not tell or tell less exactly may be otherwise."""
    table, header, plan = pq.read_table(saved), header_of(saved), balancer.load_plan(saved)
    for path, value in list(entries(header["description"]))[:: 1 if examples(1) > 1 else 2 if resealed else 9]:
        for other in (other for other in others_than(value) if other != value):
            changed = copy.deepcopy(header)
            functools.reduce(lambda at, key: at[key], path[:-1], changed["description"])[path[-1]] = other
            with_header(saved, sealed(changed) if resealed else changed, table)
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
    problem = dataclasses.replace(back.problem, batch=dataclasses.replace(back.problem.batch, home=home))
    other = dataclasses.replace(back, problem=problem)
    with pytest.raises(PlanError, match="home must be in sample order"):
        other.save(tmp_path / "plan.parquet")
    assert list(tmp_path.iterdir()) == []
