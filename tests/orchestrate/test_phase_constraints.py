"""Every phase keeps to what is asked of it: against loops over raw columns, and by trying every plan of small steps."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from plan_files import tamper, write_plan

import balancer
from balancer import MicroBatches, Phase, PlanError, Ragged, Topology, orchestrate
from balancer.io.log import open_log
from balancer.offline.load import checked_steps
from balancer.offline.settings import LogSettings
from balancer.offline.steps import plan_log
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from solvers import InfeasibleError, SolverError

ITEMS = {"vision": "images", "audio": "audio", "llm": "text"}
AMOUNTS = {"vision": "pixels", "audio": "clips+seconds", "llm": "text+audio"}
"""Of each phase a quantity that is not its length."""


SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)
"""Drawn by NumPy: hypothesis would try the smallest steps most, in which there is nothing to decide."""


def batch_of(rng, ranks, most_samples=5, most_items=6):
    """Columns of a few samples, keys, and where each may run: as lists, and as one rank."""
    n, free = int(rng.integers(1, most_samples + 1)), most_items
    images = []
    for _ in range(n):
        images.append(rng.integers(1, 10, min(free, rng.integers(0, 4))).tolist())
        free -= len(images[-1])
    numbers = {name: rng.integers(0, 10, n).tolist() for name in ("text", "clips", "seconds", "audio")}
    return numbers | {
        "images": images,
        "pixels": [rng.integers(0, 10, len(row)).tolist() for row in images],
        "key": rng.integers(0, 3, n).tolist(),
        "ranks": [np.flatnonzero(rng.random(ranks) < 0.6).tolist() or [0] for _ in range(n)],
        "pinned": rng.integers(0, ranks, n).tolist(),
    }


def constraints_of(rng, name, ranks):
    """One to three constraints of a phase."""
    values = {
        "equal_counts": True,
        "max_tokens_per_rank": int(rng.integers(9, 30)),
        "min_samples_per_rank": int(rng.integers(1, 3)),
        "max_samples_per_rank": int(rng.integers(2, 5)),
        "every_rank_nonempty": True,
        "keep_together": "key",
        "caps": {AMOUNTS[name]: int(rng.integers(9, 30))},
        "allowed_ranks": str(rng.choice(["ranks", "ranks", "pinned"])),
        "initial_loads": rng.integers(0, 20, ranks).tolist(),
        "rank_speeds": rng.integers(1, 4, ranks).tolist(),
    }
    return {option: values[option] for option in rng.choice(sorted(values), rng.integers(1, 4), replace=False).tolist()}


def as_columns(batch):
    return {
        name: Ragged.of(column) if name in ("images", "pixels", "ranks") else column for name, column in batch.items()
    }


def items_of(batch, name):
    """Sample, length and capped amount of each item of a phase."""
    found = []
    for s in range(len(batch["text"])):
        if name == "vision":
            found += [(s, length, batch["pixels"][s][j]) for j, length in enumerate(batch["images"][s])]
        elif name == "llm":
            found.append((s, batch["text"][s], batch["text"][s] + batch["audio"][s]))
        elif batch["audio"][s]:
            found.append((s, batch["audio"][s], batch["clips"][s] + batch["seconds"][s]))
    return found


def sums(values, ranks, num_ranks):
    loads = [0] * num_ranks
    for value, rank in zip(values, ranks, strict=True):
        loads[rank] += value
    return loads


def broken(asked, batch, items, ranks, num_ranks):
    """The constraints that a placement of items on ranks breaks."""
    counts = sums([1] * len(items), ranks, num_ranks)
    tokens, amounts = (sums([item[i] for item in items], ranks, num_ranks) for i in (1, 2))
    keys = {}
    for (sample, _, _), rank in zip(items, ranks, strict=True):
        keys.setdefault(batch["key"][sample], set()).add(rank)
    column = asked.get("allowed_ranks")
    may = [] if column is None else [np.atleast_1d(batch[column][sample]) for sample, _, _ in items]
    fewest = 1 if asked.get("every_rank_nonempty") and len(items) >= num_ranks else 0
    found = {
        "equal_counts": asked.get("equal_counts") and max(counts) - min(counts) > 1,
        "max_tokens_per_rank": max(tokens) > asked.get("max_tokens_per_rank", 10**9),
        "min_samples_per_rank": min(counts) < asked.get("min_samples_per_rank", 0),
        "max_samples_per_rank": max(counts) > asked.get("max_samples_per_rank", 10**9),
        "every_rank_nonempty": min(counts) < fewest,
        "keep_together": "keep_together" in asked and any(len(on) > 1 for on in keys.values()),
        "caps": any(max(amounts) > limit for limit in asked.get("caps", {}).values()),
        "allowed_ranks": any(rank not in on for rank, on in zip(ranks, may, strict=bool(may)) if may),
    }
    return [name for name, is_broken in found.items() if is_broken]


def makespan_of(asked, items, ranks, num_ranks):
    loads = sums([length for _, length, _ in items], ranks, num_ranks)
    before, speeds = asked.get("initial_loads", [0] * num_ranks), asked.get("rank_speeds", [1] * num_ranks)
    return max(-(-(load + had) // speed) for load, had, speed in zip(loads, before, speeds, strict=True))


def best_of(asked, batch, items, num_ranks):
    """The smallest makespan of any placement that keeps to all; None where there is none."""
    every = itertools.product(range(num_ranks), repeat=len(items))
    kept = [ranks for ranks in every if not broken(asked, batch, items, ranks, num_ranks)]
    return min((makespan_of(asked, items, ranks, num_ranks) for ranks in kept), default=None)


# --- one phase of several, by brute force ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ITEMS)
@given(SEEDS)
@settings(max_examples=examples(15))
def test_a_phase_keeps_to_what_is_asked_of_it_and_to_the_best_of_that(name, rng):
    num_ranks = int(rng.integers(1, 4))
    batch, asked = batch_of(rng, num_ranks), constraints_of(rng, name, num_ranks)
    phases = [Phase(other, ITEMS[other], **(asked if other == name else {})) for other in ITEMS]
    items = items_of(batch, name)
    best = best_of(asked, batch, items, num_ranks)
    if best is None:
        with pytest.raises(SolverError, match=rf"^phase '{name}': "):
            orchestrate(as_columns(batch), phases, num_ranks)
        return
    for placement in ("any", "rearrange", "relocate"):
        plan = orchestrate(as_columns(batch), phases, num_ranks, placement=placement)[name]
        ranks = plan.rank_of_sample.tolist()
        assert plan.lengths.tolist() == [length for _, length, _ in items]
        assert broken(asked, batch, items, ranks, num_ranks) == []
        assert plan.makespan == makespan_of(asked, items, ranks, num_ranks)
        assert plan.lower_bound <= best <= plan.makespan


@given(SEEDS)
@settings(max_examples=examples(25))
def test_all_phases_at_once(rng):
    num_ranks = int(rng.integers(1, 4))
    batch = batch_of(rng, num_ranks, most_samples=8, most_items=12)
    asked = {name: constraints_of(rng, name, num_ranks) for name in ITEMS}
    phases = [Phase(name, ITEMS[name], **asked[name]) for name in ITEMS]
    try:
        plan = orchestrate(as_columns(batch), phases, num_ranks)
    except SolverError as error:
        assert str(error).startswith("phase '")  # noqa: PT017
        return
    for name in ITEMS:
        items = items_of(batch, name)
        assert broken(asked[name], batch, items, plan[name].rank_of_sample.tolist(), num_ranks) == []


def test_items_of_samples_with_one_key_run_on_one_rank_though_their_samples_do_not():
    images = [[4, 4], [4], [1] * 6, [2, 2, 2]]
    batch = {"images": Ragged.of(images), "text": [9, 9, 9, 9], "book": ["b", "a", "b", "c"]}
    plan = orchestrate(batch, [Phase("vision", "images", keep_together="book"), Phase("llm", "text")], 3)
    samples = plan.phases["vision"].items.sample_of_item
    by_book = [set(plan["vision"].rank_of_sample[np.isin(samples, of)].tolist()) for of in ([0, 2], [1], [3])]
    assert sorted(map(len, by_book)) == [1, 1, 1]
    assert len(set.union(*by_book)) == 3
    assert plan["llm"].makespan == 18  # which book a text is of does not matter to the LLM


def test_every_rank_gets_what_is_already_loaded_less():
    batch = {"a": [5, 5, 5, 5], "b": [1, 1, 1, 1]}
    phases = [Phase("early", "a", initial_loads=[15, 0]), Phase("late", "b", rank_speeds=[3, 1])]
    plan = orchestrate(batch, phases, 2)
    assert plan["early"].loads.tolist() == [20, 15] or plan["early"].loads.tolist() == [15, 20]
    assert plan["late"].loads.tolist() == [3, 1]
    assert plan["late"].makespan == 1


# --- one phase that nobody names is what balance plans ---------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=examples(15))
def test_balance_and_a_step_of_one_phase_are_one_plan(rng):
    num_ranks = int(rng.integers(1, 4))
    batch, asked = batch_of(rng, num_ranks, most_samples=9), constraints_of(rng, "llm", num_ranks)
    asked.pop("every_rank_nonempty", None)  # which balance does not take
    homes = [i % num_ranks for i in range(len(batch["text"]))]
    cut = MicroBatches(8, over_long="own", allow_empty=True) if rng.random() < 0.5 else None
    if cut is not None:
        asked = {name: value for name, value in asked.items() if name not in ("initial_loads", "rank_speeds")}
    given_ = dict(asked)
    if "keep_together" in asked:
        given_["keep_together"] = batch["key"]
    if "caps" in asked:
        amounts = [t + a for t, a in zip(batch["text"], batch["audio"], strict=True)]
        given_["caps"] = {name: (amounts, limit) for name, limit in asked["caps"].items()}
    if "allowed_ranks" in asked:
        listed = [np.atleast_1d(ranks) for ranks in batch[asked["allowed_ranks"]]]
        given_["allowed_ranks"] = np.array([[rank in ranks for rank in range(num_ranks)] for ranks in listed])

    def attempt(plan):
        try:
            return plan()
        except SolverError as error:
            return str(error)

    alone = attempt(lambda: balancer.balance(batch["text"], num_ranks, home_rank=homes, cut=cut, **given_))
    step = attempt(
        lambda: orchestrate(as_columns(batch), [Phase("all", "text", **asked)], num_ranks, home_rank=homes, cut=cut)
    )
    if isinstance(alone, str):
        assert step == alone
    else:
        assert step["all"] == alone
        assert step.digest() == alone.digest()


# --- in the dispatcher, and in logs ----------------------------------------------------------------------------------

OF_PHASES = {
    "vision": {"keep_together": "key", "caps": {"pixels": 60}, "rank_speeds": (1, 2, 1)},
    "audio": {"allowed_ranks": "ranks", "initial_loads": (9, 0, 0), "min_samples_per_rank": 1},
    "llm": {"max_samples_per_rank": 5, "keep_together": "book", "caps": {"text+audio": 50, "audio": 30}},
}
CONSTRAINED = tuple(Phase(name, ITEMS[name], **OF_PHASES[name]) for name in ITEMS)
ROWS = 24


def log_columns():
    rng = np.random.default_rng(11)
    images = [rng.integers(1, 9, rng.integers(0, 4)).tolist() for _ in range(ROWS)]
    return {
        "images": images,
        "pixels": [rng.integers(0, 5, len(row)).tolist() for row in images],
        "audio": rng.integers(0, 9, ROWS).tolist(),
        "text": rng.integers(1, 9, ROWS).tolist(),
        "key": (rng.integers(0, 5, ROWS) - 2).tolist(),
        "book": [str(book) for book in rng.integers(0, 7, ROWS)],
        "ranks": [sorted({int(rank) for rank in rng.integers(0, 3, 2)}) for _ in range(ROWS)],
    }


def taken(columns, rows):
    return as_columns({name: column[rows] for name, column in columns.items()})


@pytest.fixture
def log(tmp_path):
    columns = log_columns()
    lists = {name: pa.array(columns[name], pa.list_(pa.int64())) for name in ("images", "pixels", "ranks")}
    pq.write_table(pa.table(columns | lists), tmp_path / "log.parquet")
    return open_log(tmp_path / "log.parquet")


def settings_of(phases=CONSTRAINED, **planned):
    return LogSettings(Setup(Topology([2, 1]), phases, PlanSettings(**planned)), 4)


def test_the_dispatcher_plans_what_orchestrate_does():
    gathering = pytest.importorskip("balancer.executor.gathered", exc_type=ImportError)
    from balancer.step_planner import plan_step

    columns = taken(log_columns(), slice(0, 12)) | {"pinned": np.arange(12) % 3}
    columns = {name: col if isinstance(col, Ragged) else np.asarray(col) for name, col in columns.items()}
    columns["book"] = columns["book"].astype(np.int64)  # text does not travel between ranks
    home = balancer.Placement.by_sample_order(np.arange(12, dtype=np.int32) // 4, 3)
    phases = (*CONSTRAINED[:1], Phase("audio", "audio", allowed_ranks="pinned"), CONSTRAINED[2])
    setup = Setup(Topology([2, 1]), phases)
    told = plan_step(gathering.Gathered(home, {}, {}, columns).step(setup))
    direct = orchestrate(columns, phases, Topology([2, 1]), home_rank=home.rank_of_sample)
    assert told.digest() == direct.digest()
    samples = told.phases["audio"].items.sample_of_item
    assert told["audio"].rank_of_sample.tolist() == (samples % 3).tolist()


def test_steps_of_a_log_keep_to_what_is_asked_and_so_does_their_file(log, tmp_path):
    columns = log_columns()
    plans = write_plan(tmp_path / "plan.parquet", log, settings_of())
    assert len(plans) == 2
    for number, plan in enumerate(plans):
        rows = slice(12 * number, 12 * number + 12)
        homes = [i // 4 for i in range(len(columns["text"][rows]))]
        direct = orchestrate(taken(columns, rows), CONSTRAINED, Topology([2, 1]), home_rank=homes)
        assert plan.digest() == direct.digest()
        batch = {name: column[rows] for name, column in columns.items()}
        batch |= {"clips": batch["audio"], "seconds": batch["audio"]}
        for name in ITEMS:
            keys = {"key": batch[OF_PHASES[name].get("keep_together", "key")]}
            asked = OF_PHASES[name] | {"caps": {}}
            items, ranks = items_of(batch, name), plan[name].rank_of_sample.tolist()
            assert broken(asked, batch | keys, items, ranks, 3) == []
        pixels = [p for row in batch["pixels"] for p in row]
        assert max(sums(pixels, plan["vision"].rank_of_sample.tolist(), 3)) <= 60
        assert max(sums(batch["audio"], plan["llm"].rank_of_sample.tolist(), 3)) <= 30
        both = [t + a for t, a in zip(batch["text"], batch["audio"], strict=True)]
        assert max(sums(both, plan["llm"].rank_of_sample.tolist(), 3)) <= 50
    replayed = list(checked_steps(tmp_path / "plan.parquet"))
    assert [plan.digest() for plan in replayed] == [plan.digest() for plan in plans]
    for found, plan in zip(replayed, plans, strict=True):
        for name in ITEMS:
            assert (found[name].makespan, found[name].constraints.names()) == (
                plan[name].makespan,
                plan[name].constraints.names(),
            )


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"vision": {"caps": {"pixels": 1}}}, "phase 'vision': rank . holds .* pixels, cap 1"),
        ({"audio": {"keep_together": "nobody"}}, "column 'nobody'"),
        ({"audio": {"min_samples_per_rank": 9}}, "phase 'audio': rank . holds . samples, least 9"),
        ({"llm": {"keep_together": "one"}}, "phase 'llm': samples . and . have one keep_together key, but run on two"),
        ({"llm": {"allowed_ranks": "first"}}, "phase 'llm': sample . runs on rank ., which allowed_ranks forbids"),
    ],
)
def test_a_file_whose_plans_do_not_keep_to_what_it_says_is_refused(changed, rule, log, tmp_path):
    """As when the description was changed by hand: every constraint is checked again, those with columns too."""
    table = pq.read_table(log.path)
    more = table.append_column("one", pa.array([1] * ROWS, pa.int64()))
    more = more.append_column("first", pa.array([[0]] * ROWS, pa.list_(pa.int64())))
    pq.write_table(more, log.path)
    write_plan(tmp_path / "plan.parquet", open_log(log.path), settings_of())

    def claim(description):
        for phase in description["phases"]:
            phase.update(changed.get(phase["name"], {}))

    tamper(tmp_path / "plan.parquet", description=claim)
    with pytest.raises((PlanError, balancer.InputError), match=rule) as caught:
        list(checked_steps(tmp_path / "plan.parquet"))
    assert str(tmp_path) in str(caught.value)


def test_a_step_that_cannot_keep_to_it_is_named_with_its_phase_and_row(log):
    keys = pa.array([*range(12), *[7] * 12], pa.int64())  # all alike in the second step
    pq.write_table(pq.read_table(log.path).set_column(4, "key", keys), log.path)
    phases = (Phase("vision", "images", keep_together="key", max_samples_per_rank=12), CONSTRAINED[2])
    message = r"log\.parquet: step 1: phase 'vision': max_samples_per_rank: items 0, 1, .* must stay together"
    with pytest.raises(InfeasibleError, match=message):
        list(plan_log(open_log(log.path), settings_of(phases)))
    phases = (CONSTRAINED[0], Phase("llm", "text", keep_together="key", max_samples_per_rank=11))
    message = r"log\.parquet: step 1: phase 'llm': max_samples_per_rank: rows 12, 13, .* must stay together"
    with pytest.raises(InfeasibleError, match=message):
        list(plan_log(open_log(log.path), settings_of(phases)))


@pytest.mark.parametrize("encoders", ["slot", "step"])
def test_the_last_phase_keeps_to_it_with_micro_batches_too(encoders, log, tmp_path):
    phases = (Phase("vision", "images"), CONSTRAINED[2])
    if encoders == "step":
        phases = (Phase("vision", "images", keep_together="key", min_samples_per_rank=1), CONSTRAINED[2])
    cut = MicroBatches(12, encoders=encoders, allow_empty=True)
    plans = write_plan(tmp_path / "plan.parquet", log, settings_of(phases, cut=cut))
    columns = log_columns()
    for number, plan in enumerate(plans):
        batch = {name: column[12 * number : 12 * number + 12] for name, column in columns.items()}
        asked = {"max_samples_per_rank": 5, "keep_together": "key", "caps": {"text+audio": 50}}
        ranks = plan["llm"].rank_of_sample.tolist()
        assert broken(asked, batch | {"key": batch["book"]}, items_of(batch, "llm"), ranks, 3) == []
        if encoders == "step":
            asked = {"keep_together": "key", "min_samples_per_rank": 1}
            ranks = plan["vision"].rank_of_sample.tolist()
            assert broken(asked, batch, items_of(batch, "vision"), ranks, 3) == []
    assert [p.digest() for p in checked_steps(tmp_path / "plan.parquet")] == [p.digest() for p in plans]
