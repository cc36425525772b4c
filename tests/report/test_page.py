"""The page: it needs nothing but itself, names are text, numbers are right, and it does not grow with the run."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from page_cases import HOSTILE, plans_of, run_of, shown
from seen_page import Seen, assert_same_but_names

import balancer
from balancer.cost import parse_cost
from balancer.report.page_data import MOST_BARS, MOST_NODES, MOST_WORST

pytest.importorskip("matplotlib")

from balancer.report import charts, plan_page
from balancer.report import page as page_module
from balancer.report.table import as_percent, why_not_relocated


def page(*run):
    return str(plan_page.plan_page(*run))


@pytest.fixture(scope="module")
def made():
    return page(*run_of(plans_of()), "plan.parquet")


@pytest.mark.parametrize("octaves", [0.25, 0.5, 1, 2, 3, 5, 8, 12, 20, 40])
@pytest.mark.parametrize("least", [1, 2**1.5, 7, 256, 300, 9_000, 999_999, 1_200_000])
def test_labels_of_lengths_do_not_meet(least, octaves):
    ticks, labels = charts.log_ticks(least, least * 2**octaves)
    assert ticks
    assert least <= min(ticks) <= max(ticks) <= least * 2**octaves
    inches = 3.7 * np.diff(np.log2(ticks)) / (1.1 * octaves)  # of a chart, with margins
    for room, *both in zip(inches, labels, labels[1:], strict=False):
        assert room > 0.08 * sum(map(len, both)) / 2
    assert len(set(labels)) == len(labels)


def test_one_of_a_kind_is_told_in_the_singular():
    seen = Seen(page(*run_of([balancer.balance([3], 1)]), "one"))
    assert "1 sample in 1 step, 1 rank." in seen.text


def test_no_heat_map_of_nothing():
    topology = balancer.Topology.uniform(4, 1)
    plan = balancer.orchestrate({"a": [3, 3, 3, 3], "b": [1, 1, 1, 1]}, {"a": "a", "b": "b"}, topology)
    seen = Seen(page(*run_of([plan]), "even"))
    assert "Nothing crosses nodes." in seen.text
    assert "traffic" not in {attributes.get("id") for _, attributes in seen.tags}


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_micro_batches_and_why_samples_were_not_kept_near_home_are_said(sync):
    """In the words of the table."""
    micro_batches = balancer.MicroBatches(9, sync)
    plan = balancer.balance([5, 4, 3, 2, 2, 2], 2, 1, [0, 0, 0, 1, 1, 1], cut=micro_batches)
    summary, data = run_of([replace(plan, fell_back="relocated, it takes 1.5% <longer>"), replace(plan, fell_back="")])
    seen = Seen(page(summary, data, "plan.parquet"))
    why = why_not_relocated(summary.phases["all"])
    assert why.endswith("Relocated, it takes 1.5% <longer>.")
    assert why in seen.text
    assert f"micro-batches ({sync})" in seen.text
    said = " ".join(seen.text)
    assert ("largest load over mean load" in said) == (sync == "step")
    for more in ("Before: as the samples lie, not cut into micro-batches", "wait for more than these sums show"):
        assert (more in said) == (sync == "micro_batch")


def test_nothing_is_said_of_relocation_where_all_was(made):
    assert "What could not be had" not in made
    assert "steps not relocated" not in made
    assert "micro-batches" not in made


PHASES = [name.replace(":", "").replace("=", "") for name in HOSTILE]


def test_names_of_phases_are_text():
    plain = Seen(page(*run_of(plans_of([f"p{i}" for i in range(len(PHASES))], steps=1)), "plan"))
    summary, data = run_of(plans_of(PHASES, steps=1))
    text = page(summary, data, "plan")
    seen = Seen(text)
    assert_same_but_names(seen, plain)
    for name in PHASES:
        assert sum(piece.startswith(shown(name)) for piece in seen.text) >= 6  # cards, charts, table
        drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        assert not [svg for svg in drawings if name[:20] in html.unescape(svg)]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_files_are_text(name, monkeypatch):
    monkeypatch.setattr(page_module, "svg_of", lambda *_, **__: "<svg></svg>")
    run = run_of(plans_of(steps=1))
    seen = Seen(page(*run, name))
    assert_same_but_names(seen, Seen(page(*run, "plan")))
    assert sum(piece.startswith(shown(name)) for piece in seen.text) == 2  # title and heading
    assert max(map(len, seen.text)) < 6000


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


def test_data_against_loops():
    plans = plans_of()
    _, data = run_of(plans)
    node = plans[0].topology.node_of_rank
    moved = np.zeros((4, 4))
    for plan in plans:
        for stream in plan.streams.values():
            for source, target, volume in zip(
                stream.source.rank_of_sample, stream.target.rank_of_sample, stream.bytes_of_item, strict=True
            ):
                if node[source] != node[target]:
                    moved[node[source], node[target]] += volume
    assert np.array_equal(data.traffic, moved)
    for name, phase in data.phases.items():
        loads = [sorted(plan[name].loads.tolist(), reverse=True) for plan in plans]
        assert np.allclose(phase.profile_after, np.sum(loads, axis=0))
        assert phase.length_counts.sum() + phase.zeros == sum(plan[name].num_samples for plan in plans)
        worst = max(plans, key=lambda plan: plan[name].imbalance_ratio)
        assert max(phase.worst).ratio_after == worst[name].imbalance_ratio
        for b in np.flatnonzero(phase.length_counts):
            inside = [
                length
                for plan in plans
                for length in plan[name].lengths.tolist()
                if 2 ** (b / 4) <= length < 2 ** ((b + 1) / 4)
            ]
            assert phase.length_counts[b] == len(inside)


def test_chart_and_card_show_one_average():
    """That in which a long step counts for more."""
    summary, data = run_of(plans_of())
    for name, phase in summary.phases.items():
        before, after = data.phases[name].profiles()
        assert (before.loads[0], after.loads[0]) == pytest.approx((phase.ratio_before, phase.ratio_after))
        assert after.bound == pytest.approx(phase.ratio_bound)


def test_a_step_is_priced_in_flops_where_models_say_what_a_unit_is():
    """Phases one after the other, each as long as its slowest rank, in FLOPs; not of costs that no model names."""
    batch = {"images": [4096, 64, 64, 64], "text": [2000, 300, 100, 900]}
    units = {"vision": "internvit-6b", "llm": "qwen2-7b"}
    columns = {"vision": "images", "llm": "text"}
    phases = [balancer.Phase(name, columns[name], cost=f"flops:{model}") for name, model in units.items()]
    plan = balancer.orchestrate(batch, phases, 2, placement="any")
    summary, data = run_of([plan])
    of = {name: parse_cost(f"flops:{model}").flops_of_unit for name, model in units.items()}
    before, after = (
        sum(of[name] * makespan(plan[name]) for name in of)
        for makespan in (lambda each: each.home_makespan, lambda each: each.makespan)
    )
    found = page(summary, data, "a plan")
    assert f"a step take <strong>{as_percent(1 - after / before)} less time</strong>" in found
    assert "time is proportional to FLOPs, phases run one after the other" in found
    other = [phases[0], balancer.Phase("llm", "text", cost="linear")]
    assert "less time" not in page(*run_of([balancer.orchestrate(batch, other, 2, placement="any")]), "a plan")


def test_a_headline_says_what_it_assumes(made):
    """Costs of phases are added up only where joint balancing has been told that they have one unit."""
    assert "if that is proportional to cost" in made
    assert "less time" not in made
    batch = {"a": [9, 1, 1, 1], "b": [7, 1, 1, 1], "c": [2, 2, 2, 2]}
    plan = balancer.orchestrate(batch, {name: name for name in batch}, 2, mode="joint", placement="any")
    summary, data = run_of([plan])
    before = max(plan["a"].home_loads + plan["b"].home_loads) + plan["c"].home_makespan
    after = max(plan["a"].loads + plan["b"].loads) + plan["c"].makespan
    words = "in one unit for all phases, and what moves costs none, this plan makes a step take <strong>"
    assert after < before
    assert f"{words}{100 * (1 - after / before):.1f} %" in page(summary, data, "plan")
    for text in (made, page(*run_of([balancer.balance([9, 1, 1, 1], 2, placement="any")]), "one")):
        assert "Assumed" in Seen(text).text
        assert "proportional to the cost" in text


def test_the_step_drawn_is_the_median_one():
    plans = plans_of(steps=41, ranks=4)
    saved = [sum(plan[name].home_imbalance_ratio - plan[name].imbalance_ratio for name in plan.phases)
             for plan in plans]  # fmt: skip
    picture = run_of(plans)[1].picture
    assert sorted(saved).index(picture.saved) == 20
    assert run_of(plans[:9])[1].picture.saved == sorted(saved[:9])[4]
    drawn_of = plans[picture.step]["llm"]
    for drawn, loads in zip(picture.phases["llm"], (drawn_of.home_loads, drawn_of.loads), strict=True):
        assert np.allclose(drawn.loads * loads.mean(), np.sort(loads)[::-1])


def test_the_sample_that_caps_a_step_is_marked_on_its_rank():
    plan = balancer.balance([2, 2, 40, 3, 1, 2], 3, placement="any", home_rank=[0, 0, 1, 1, 2, 2])
    _, data = run_of([plan])
    for drawn, loads in zip(data.picture.phases["all"], (plan.home_loads, plan.loads), strict=True):
        assert drawn.cap * loads.mean() == pytest.approx(40)
        assert drawn.cap_bar == 0
    assert "Hatched" in page(*run_of([plan]), "capped")
    assert "Hatched" not in page(*run_of(plans_of(steps=1, samples=60)), "even")


def test_even_steps_are_not_listed():
    even = page(*run_of([balancer.balance([4, 4, 4, 4], 2)]), "even")
    assert "By imbalance ratio: none over 1.001." in even
    assert "capped by row" not in even
    batch = {"a": [4, 4, 4, 4], "b": [9, 1, 1, 1]}
    mixed = Seen(page(*run_of([balancer.orchestrate(batch, {"a": "a", "b": "b"}, 2, placement="any")]), "mixed"))
    assert mixed.text.count("none over 1.001") == 1


def test_few_nodes_have_no_heat_map():
    made = page(*run_of([balancer.balance([9, 1, 1, 1, 5, 3], 6, 2)]), "three nodes")
    assert "travels between nodes" not in made


def test_a_thousand_steps_of_2560_ranks_stay_small():
    rng = np.random.default_rng(0)
    batch = {name: rng.lognormal(6, 1, 2560 * 4).astype(np.int64) for name in ("vision", "audio", "llm")}
    phases = {name: name for name in batch}
    plan = balancer.orchestrate(batch, phases, balancer.Topology.uniform(2560, 8), placement="any")
    summary, data = run_of([plan] * 3)
    for phase in data.phases.values():
        phase.ratios *= 333  # as if it had gone on so
    text = page(summary, data, "plan")
    assert len(text.encode()) < 6e6 / 10
    assert len(data.phases["llm"].profile_after) <= MOST_BARS
    assert len(data.picture.phases["llm"][0].loads) <= MOST_BARS
    assert len(data.traffic) <= MOST_NODES
    assert len(data.phases["llm"].worst) <= MOST_WORST
    assert "Each row and column stands for 10 nodes" in text
    assert "Each bar stands for 20 ranks" in text


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
