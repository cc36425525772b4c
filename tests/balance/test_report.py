"""What plans amount to, as numbers and as a table."""

import dataclasses
import io
import json

import pytest
from balance_cases import problems
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import examples
from rich.console import Console

import balancer
from balancer.offline.step_table import StepRows, ratios_in, restored, stored, summary, table_of
from balancer.plan.reasons import Reason, Reasons
from balancer.plan.step_plan import as_step_plan
from balancer.report.plan_table import print_summary
from balancer.report.table import as_alike, as_bytes, as_ratios


def steps_of(plans):
    rows = StepRows()
    for step, plan in enumerate(plans):
        rows.add(step, as_step_plan(plan), rows.samples)
    return rows.table()


def summary_of(plans):
    return summary(steps_of(plans))


def text_of(steps, title="title", runtime_s=0.5):
    console = Console(file=io.StringIO(), width=100)
    print_summary(console, steps, title, runtime_s)
    return " ".join(console.file.getvalue().split())


@given(st.lists(problems(), min_size=1, max_size=4))
@settings(max_examples=examples(15))
def test_numbers_against_their_definition(steps):
    plans = [balancer.balance(**problem) for problem in steps]
    numbers = summary_of(plans)
    before = sum(max(p.home_loads.tolist()) * p.num_ranks for p in plans)  # rank-time: all wait for the slowest
    after = sum(max(p.loads.tolist()) * p.num_ranks for p in plans)
    sums = [(sum(p.home_loads.tolist()), sum(p.loads.tolist())) for p in plans]
    sums = [pair if p.cost.additive else (min(pair), min(pair)) for p, pair in zip(plans, sums, strict=True)]
    mean_before, mean_after = map(sum, zip(*sums, strict=True))
    gaps = [(p.makespan - p.lower_bound) / p.lower_bound if p.makespan != p.lower_bound else 0 for p in plans]
    volume = sum(sum(problem["lengths"]) for problem in steps)
    phase = numbers["phases"]["all"]
    assert numbers["steps"] == len(steps)
    assert numbers["samples"] == sum(len(problem["lengths"]) for problem in steps)
    assert phase["imbalance_ratio_before"] == pytest.approx(before / mean_before if mean_before else 1)
    assert phase["imbalance_ratio_after"] == pytest.approx(after / mean_after if mean_after else 1)
    assert phase["waiting_before"] == pytest.approx(1 - mean_before / before if before else 0, abs=1e-12)
    assert phase["waiting_after"] == pytest.approx(1 - mean_after / after if after else 0, abs=1e-12)
    assert phase["gap_mean"] == pytest.approx(sum(gaps) / len(gaps))
    assert phase["gap_largest"] == pytest.approx(max(gaps))
    assert phase["steps_proven_optimal"] == sum(p.status == "optimal" for p in plans)
    assert phase["steps_proven_within"] == sum(p.status in ("optimal", "within") for p in plans)
    crossing = sum(p.inter_node_volume for p in plans)
    assert phase["crosses_nodes"] == pytest.approx(crossing / volume if volume else 0)
    assert phase["capped_steps"] == sum(p.binding_sample is not None for p in plans)
    json.dumps(numbers, allow_nan=False)


def test_a_step_counts_for_as_long_as_it_takes():
    plans = [balancer.balance([1, 1], 2), balancer.balance([98, 0], 2)]
    assert summary_of(plans)["phases"]["all"]["imbalance_ratio_after"] == 99 / 50


def test_nothing_planned():
    numbers = summary(table_of([]))
    assert numbers == {"version": 2, "steps": 0, "samples": 0, "cost": {}, "fell_back_steps": 0, "phases": {}}


@given(st.integers(1, 9), st.integers(1, 2**59))
@example(3, 26340695580188889)  # sums past 2**53, which floats round: down and
@example(3, 21238881483001062)  # up
@settings(max_examples=examples(25))
def test_nobody_idles_where_all_loads_are_equal(num_ranks, load):
    phase = summary_of([balancer.balance([load] * num_ranks, num_ranks)])["phases"]["all"]
    assert phase["imbalance_ratio_after"] == 1.0
    assert phase["waiting_after"] == 0.0


def test_an_infinite_gap_is_null():
    plan = dataclasses.replace(balancer.balance([3, 1], 2), lower_bound=0)
    phase = summary_of([plan])["phases"]["all"]
    assert phase["gap_mean"] is phase["gap_largest"] is None


def test_the_sample_that_caps_the_worst_step_is_named():
    steps = [[5, 5, 5, 5], [1, 1, 30, 1], [1, 900, 1, 1], [1, 1, 1, 40]]
    plans = [balancer.balance(lengths, 2) for lengths in steps]
    phase = summary_of(plans)["phases"]["all"]
    assert phase["capped_steps"] == 3
    found = phase["capping_sample"]
    assert (found["step"], found["row"], found["length"]) == (2, 9, 900)
    assert found["imbalance_ratio_best_possible"] == pytest.approx(900 / (903 / 2))
    text = text_of(steps_of(plans))
    assert "In 3 of 4 steps one sample alone costs more than a rank's fair share" in text
    assert "row 9 (from 0), length 900, in step 2" in text


def test_the_table_says_what_the_json_says():
    lengths = [900, 100, 400, 600, 500, 500, 70, 7]
    steps = steps_of([balancer.balance(lengths, 4, 2)])
    text = text_of(steps, "log.parquet: [bold]tokens", 0.5)
    before, after, bound = ratios_in(steps)
    assert "log.parquet: [bold]tokens" in text  # markup in a file's name is no markup
    assert f"imbalance ratio {before:.3f} {after:.3f} {bound:.3f}" in text
    assert "1 step," in text
    assert "8 samples" in text
    assert "planned in 0.50 s: 500 ms a step" in text
    assert ": 0.004 ms a step" in text_of(steps, runtime_s=4e-6)


def test_no_plan_is_shown_as_perfect_that_is_not():
    plan = balancer.balance([1_000_001, 1_000_000], 2)
    text = text_of(steps_of([plan]))
    assert "imbalance ratio 1.000 " not in text
    assert "waiting under 0.001 %" in text


def test_numbers_that_stand_together_have_as_many_decimals():
    assert as_ratios([2.5, 1.0, 1.25]) == ["2.500", "1.000", "1.250"]
    assert as_ratios([2.5, 1.0, 1.000468]) == ["2.5000", "1.0000", "1.0005"]
    assert as_ratios([2.5, 1 + 1e-11]) == ["2.500", "1.000"]  # what rounding to whole units leaves
    assert as_alike([14.5, 7, 0.04, 0]) == ["14.5", "7.0", "0.0", "0.0"]
    assert as_alike([99.96, 7]) == ["100", "7"]
    assert as_alike([5.4e-05, 0, 0.0014], 2, least=True) == ["0.000054", "0.000000", "0.001400"]
    assert as_alike([0, 0.0]) == ["0", "0"]
    assert as_alike([]) == []
    sizes = [0, 7, 289, 999.4, 999.6, 44_000, 37_940, 999_499, 999_600, 4.2e9, 5e15]
    assert [as_bytes(size) for size in sizes] == [
        "0 B", "7 B", "289 B", "999 B", "1.00 KB", "44.0 KB", "37.9 KB", "999 KB", "1.00 MB", "4.20 GB", "5,000 TB",
    ]  # fmt: skip


def test_a_ratio_close_to_perfect_sets_the_decimals_of_all_phases():
    batch = {"near": [10_001, 10_000, 0], "far": [3, 2, 2]}
    plan = balancer.orchestrate(batch, {name: name for name in batch}, 2, placement="any")
    text = text_of(steps_of([plan]))
    assert "near imbalance ratio 2.00000 1.00005 1.00005" in text
    assert "far imbalance ratio 1.42857 1.14286 1.14286" in text


def fallen(reasons):
    plan = balancer.balance([3, 1], 2)
    return steps_of([dataclasses.replace(plan, fell_back=reason) for reason in reasons])


def test_reasons_are_counted_and_percentages_are_a_range():
    long = [Reason("it takes", percent, "longer") for percent in (9.5, 10, 0.2, 1)]
    steps = fallen([long[0], "no room", "", *long[1:]])
    counts = {"it takes 0.2 % to 10 % (median 1 %) longer": 4, "no room": 1}
    assert summary(steps)["phases"]["all"]["fell_back"] == counts
    assert summary(restored(stored(steps)))["fell_back_steps"] == 5
    said = "in 5 of 6 steps samples were balanced first and laid on nodes afterwards, which moves more."
    assert (
        f"{said[:1].upper()}{said[1:]} 4 steps: it takes 0.2 % to 10 % (median 1 %) longer. 1 step: no room."
        in text_of(steps)
    )


def test_reasons_told_again_stay_as_they_are():
    """One that was counted is a reason again."""
    told, again = Reasons(), Reasons()
    for reason in (*(Reason("it takes", percent, "longer") for percent in (9.5, 10, 1e-05)), "no room", "1% of 3%"):
        told.add(reason)
    for reason, count in told.counted():
        for _ in range(count):
            again.add(reason)
    assert dict(again.counted()) == dict(told.counted())


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (["no room", "no room"], "in 2 of 2 steps samples were balanced first and laid on nodes afterwards, which "
         "moves more. No room."),
        (["1.10% more", ""], "in 1 of 2 steps samples were balanced first and laid on nodes afterwards, which moves "
         "more. 1.10% more."),
    ],
)  # fmt: skip
def test_one_reason_is_a_sentence(reasons, said):
    assert f"{said[:1].upper()}{said[1:]} " in text_of(fallen(reasons))


@pytest.mark.parametrize(
    ("encoders", "sync", "cut", "piecewise"),
    [
        ("slot", "step", ["vision", "llm"], True),  # encoders meet in every slot in any case
        ("step", "micro_batch", ["llm"], True),
        ("step", "step", ["llm"], False),
    ],
)
def test_who_computes_in_micro_batches(encoders, sync, cut, piecewise):
    micro_batches = balancer.MicroBatches(9, sync, encoders=encoders)
    columns = {"vision": [4, 0, 2, 1, 3, 0], "llm": [5, 4, 3, 2, 2, 2]}
    plan = balancer.orchestrate(columns, {n: n for n in columns}, 2, cut=micro_batches)
    steps = steps_of([plan])
    phases = summary(steps)["phases"]
    assert [name for name in phases if "sync" in phases[name]] == cut
    assert ("not cut into micro-batches; ranks wait once a step" in text_of(steps)) == piecewise
    pytest.importorskip("matplotlib")
    from balancer.report.plan_page import asked_for, encoder_slots

    assert asked_for(plan["llm"]).endswith(f"micro-batches of at most 9, sync {sync}")
    where = "in the micro-batches of the samples" if encoders == "slot" else "before the first micro-batch"
    assert asked_for(plan["vision"], encoder_slots(plan, "vision")).endswith(where)
