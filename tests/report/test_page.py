"""The page: it needs nothing but itself, names are text, numbers are right, and it does not grow with the run."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from page_cases import HOSTILE, plans_of, run_of, shown
from seen_page import Seen, assert_same_but_names

import balancer
from balancer.offline.step_table import StepRows, summary, total

pytest.importorskip("matplotlib")

from balancer.report import charts, plan_page
from balancer.report import page as page_module
from balancer.report.remarks import why_not_relocated
from balancer.report.table import as_percent


def page(*run):
    return str(plan_page.plan_page(*run))


@pytest.fixture(scope="module")
def made():
    return page(*run_of(plans_of()), "plan.parquet")


@pytest.mark.parametrize("octaves", [0.25, 1, 3, 8, 40])
@pytest.mark.parametrize("least", [1, 2**1.5, 300, 999_999])
def test_labels_of_lengths_do_not_meet(least, octaves):
    ticks, labels = charts.log_ticks(least, least * 2**octaves)
    assert ticks
    assert least <= min(ticks) <= max(ticks) <= least * 2**octaves
    inches = 3.7 * np.diff(np.log2(ticks)) / (1.1 * octaves)  # of a chart, with margins
    for room, *both in zip(inches, labels, labels[1:], strict=False):
        assert room > 0.08 * sum(map(len, both)) / 2
    assert len(set(labels)) == len(labels)


@pytest.mark.usefixtures("undrawn")
def test_one_of_a_kind_is_told_in_the_singular():
    seen = Seen(page(*run_of([balancer.balance([3], 1)]), "one"))
    assert "1 sample in 1 step, 1 rank." in seen.text


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_micro_batches_and_why_samples_were_not_kept_near_home_are_said(sync):
    """In the words of the table."""
    micro_batches = balancer.MicroBatches(9, sync)
    plan = balancer.balance([5, 4, 3, 2, 2, 2], 2, 1, [0, 0, 0, 1, 1, 1], cut=micro_batches)
    run = run_of([replace(plan, fell_back="relocated, it takes 1.5% <longer>"), replace(plan, fell_back="")])
    seen = Seen(page(*run, "plan.parquet"))
    why = why_not_relocated(summary(run[0])["phases"]["all"], 2)
    assert why.endswith("Relocated, it takes 1.5% <longer>.")
    assert f"{why[:1].upper()}{why[1:]}" in " ".join(seen.text)
    assert f"micro-batches ({sync})" in seen.text
    said = " ".join(seen.text)
    assert ("largest load over mean load" in said) == (sync == "step")
    for more in ("Before: as the samples lie, not cut into micro-batches", "wait for more than these sums show"):
        assert (more in said) == (sync == "micro_batch")


def test_nothing_is_said_of_relocation_where_all_was(made):
    assert "laid on nodes afterwards" not in made
    assert "micro-batches" not in made


PHASES = [name.replace(":", "").replace("=", "") for name in HOSTILE[2:5]]


def test_names_of_phases_are_text():
    plain = Seen(page(*run_of(plans_of([f"p{i}" for i in range(len(PHASES))], steps=1)), "plan"))
    text = page(*run_of(plans_of(PHASES, steps=1)), "plan")
    seen = Seen(text)
    assert_same_but_names(seen, plain)
    for name in PHASES:
        assert sum(piece.startswith(shown(name)) for piece in seen.text) >= 2  # card, and what was asked for
        drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        assert not [svg for svg in drawings if name[:20] in html.unescape(svg)]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_files_are_text(name):
    run = run_of(plans_of(steps=1))
    seen = Seen(page(*run, name))
    assert_same_but_names(seen, Seen(page(*run, "plan")))
    assert sum(piece.startswith(shown(name)) for piece in seen.text) == 2  # title and heading
    assert max(map(len, seen.text)) < 6000


@pytest.mark.usefixtures("undrawn")
def test_a_name_that_is_no_text_ends_no_run(tmp_path):
    made = plan_page.plan_page(*run_of(plans_of(steps=1)), "bad\udcff.parquet")
    page_module.write_page(str(tmp_path / "r.html"), made)
    assert b"bad\\udcff.parquet" in (tmp_path / "r.html").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_the_headline_is_what_the_loads_say(made):
    plans = plans_of()
    text = " ".join("".join(Seen(made).text).split())
    for name in ("vision", "llm"):
        largest = [(plan[name].home_loads.max(), plan[name].loads.max()) for plan in plans]
        worked = sum(plan[name].loads.mean() for plan in plans)
        for slowest in np.sum(largest, axis=0):
            assert f"{1 - worked / slowest:.1%}".replace("%", " %") in text


def test_lengths_against_loops():
    plans = plans_of()
    _, drawn = run_of(plans)
    for name, counts in drawn.lengths.items():
        lengths = np.concatenate([plan[name].lengths for plan in plans])
        for b in range(len(counts)):
            assert counts[b] == sum(2 ** (b / 4) <= length < 2 ** ((b + 1) / 4) for length in lengths[lengths > 0])


def test_worst_steps_and_ratios_against_the_plans(made):
    plans = plans_of()
    text = " ".join("".join(Seen(made).text).split())
    for name in ("vision", "llm"):
        worst = max(plan[name].imbalance_ratio for plan in plans)
        assert f"{worst:.3f}" in text


@pytest.mark.usefixtures("undrawn")
def test_a_headline_says_what_it_assumes(made):
    """Costs of phases are added up only where joint balancing has been told that they have one unit."""
    assert "depends on how long each phase takes" in made
    assert "less time" not in made
    batch = {"a": [9, 1, 1, 1], "b": [7, 1, 1, 1], "c": [2, 2, 2, 2]}
    plan = balancer.orchestrate(batch, {name: name for name in batch}, 2, mode="joint", placement="any")
    before = max(plan["a"].home_loads + plan["b"].home_loads) + plan["c"].home_makespan
    after = max(plan["a"].loads + plan["b"].loads) + plan["c"].makespan
    steps, drawn = run_of([plan])
    assert (total(steps["joint_before"]), total(steps["joint_after"])) == (before, after)
    assert after < before
    words = "less time</strong>, with costs in one unit for all phases."
    assert f"{100 * (1 - after / before):.1f} % {words}" in page(steps, drawn, "plan")
    for text in (made, page(*run_of([balancer.balance([9, 1, 1, 1], 2, placement="any")]), "one")):
        assert "What was asked for, and assumed" in Seen(text).text
        assert "proportional to the cost" in text


def test_the_step_drawn_is_the_median_one():
    plans = plans_of(steps=41, ranks=4)
    saved = [sum(plan[name].home_imbalance_ratio - plan[name].imbalance_ratio for name in plan.phases)
             for plan in plans]  # fmt: skip
    assert sorted(saved).index(saved[run_of(plans)[1].step]) == 20
    drawn = run_of(plans[:9])[1]
    assert saved[drawn.step] == sorted(saved[:9])[4]
    assert drawn.plan is plans[drawn.step]


@pytest.mark.usefixtures("undrawn")
def test_what_is_proven_is_said_and_to_how_much():
    plan = balancer.balance([7, 5, 4, 4, 3, 3, 2, 2, 9, 8, 1], 3, placement="any", method="lpt")
    apart = replace(plan, lower_bound=plan.lower_bound - 1)  # as if less had been proven
    said = summary(run_of([apart])[0])["phases"]["all"]
    assert said["gap_mean"] > 0.05
    least, gap = as_percent(said["waiting_best_possible"]), as_percent(said["gap_mean"])
    text = page(*run_of([apart]), "plan")
    assert f"under any plan at least {least}, proven; the mean gap to that bound is {gap}" in text
    assert "least possible" not in text


@pytest.mark.usefixtures("undrawn")
def test_even_steps_are_not_listed():
    even = page(*run_of([balancer.balance([4, 4, 4, 4], 2)]), "even")
    assert "By imbalance ratio: none over 1.001." in even
    assert "capped by row" not in even
    batch = {"a": [4, 4, 4, 4], "b": [9, 1, 1, 1]}
    mixed = Seen(page(*run_of([balancer.orchestrate(batch, {"a": "a", "b": "b"}, 2, placement="any")]), "mixed"))
    assert mixed.text.count("b") > mixed.text.count("a")  # rows of b alone


def test_many_steps_of_many_ranks_take_64_kib():
    rng = np.random.default_rng(0)
    batch = {name: rng.lognormal(6, 1, 512 * 4).astype(np.int64) for name in ("vision", "audio", "llm", "more")}
    phases = {name: name for name in batch}
    plan = balancer.orchestrate(batch, phases, balancer.Topology.uniform(512, 8), placement="any", method="lpt")
    rows = StepRows()
    for step in range(300):
        rows.add(step, plan)
    drawn = plan_page.Drawn(rows.table())
    drawn.plan = plan
    for name, each in plan.phases.items():
        drawn.lengths[name] = np.bincount((4 * np.log2(each.plan.lengths)).astype(int), minlength=256)
    assert len(page(rows.table(), drawn, "plan").encode()) <= 65_536


def test_a_pipeline_of_many_stages_takes_64_kib():
    cut = balancer.Pipelines(4000, count=32, stages=balancer.PipelineStages.of({"llm": 8}))
    plan = balancer.orchestrate({"llm": np.arange(1, 257)}, {"llm": "llm"}, 2, cut=cut)
    text = page(*run_of([plan]), "plan")
    assert "Where stages wait" in text
    assert len(text.encode()) <= 65_536


@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ([0, 0, 0, 0], {}),
        ([5], {"num_ranks": 1}),
        ([3, 9, 4, 1], {"rank_speeds": [1, 2]}),
        ([3, 9, 4, 1], {"cut": balancer.MicroBatches(9)}),
        ([2**60, 1, 1], {}),
    ],
)
def test_odd_plans_have_pages(lengths, options):
    plan = balancer.balance(lengths, **({"num_ranks": 2} | options))
    seen = Seen(page(*run_of([plan]), "odd"))
    assert "nan" not in "".join(seen.text)
    assert seen.open == []
