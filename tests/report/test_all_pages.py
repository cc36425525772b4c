"""What holds of every page: of a plan, a simulation, a choice of layouts, and advice."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from page_cases import plans_of, run_of
from seen_page import Seen, assert_needs_nothing_outside
from simulation_cases import log_of, simulated

import balancer

pytest.importorskip("matplotlib")

from balancer.advice.page import advice_page
from balancer.layout_choice import choose as room
from balancer.layout_choice.bounds import room_of
from balancer.report.charts import svg_of
from balancer.report.layout_page import layout_page
from balancer.report.plan_page import plan_page
from balancer.report.simulation_page import simulation_page

CHARTS = {"plan": 6, "simulation": 2, "layouts": 2, "advice": 1}


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    path = tmp_path_factory.mktemp("layouts") / "log.parquet"
    pq.write_table(pa.table({"patches": np.arange(24) % 9 * 256, "tokens": np.arange(20, 1940, 80)}), path)
    models = {"vision": "internvit-300m", "llm": "qwen2-7b"}
    asked = {"phases": {"vision": "patches", "llm": "tokens"}, "models": models, "batch": 8, "cluster": "h100"}
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(room, "_EACH_S", 1e-4)
        quick.setattr(room, "LAST_S", 1e-4)
        return balancer.configure(str(path), 4, mode="stages", layouts=1, **asked)


@pytest.fixture(scope="module", params=CHARTS)
def made(request, layouts, tmp_path_factory):
    """Which page it is, and what makes it."""
    log = log_of(tmp_path_factory.mktemp("simulated"))
    lengths = {"tokens": np.random.default_rng(0).lognormal(5, 1.5, 64).astype(int)}
    makes = {
        "plan": lambda: plan_page(*run_of(plans_of()), "a plan"),
        "simulation": lambda: simulation_page(*simulated(log), "a log"),
        "layouts": lambda: layout_page(layouts, "a log"),
        "advice": lambda: advice_page(balancer.advise(lengths, num_ranks=4, batch_per_rank=4)),
    }
    return request.param, str(makes[request.param]()), makes[request.param]


def test_it_needs_nothing_outside_and_hangs_together(made):
    _, text, _ = made
    assert_needs_nothing_outside(text)
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'(?:href="|url\()#([^")]+)', text):
        assert target in ids


def test_every_chart_is_there_with_its_sentence(made):
    which, text, _ = made
    tags = Seen(text).tags
    assert sum(tag == "svg" for tag, _ in tags) == CHARTS[which]
    assert len([a["aria-label"] for tag, a in tags if tag == "figure" and a["role"] == "img"]) == CHARTS[which]
    assert len(text.encode()) < 65_536


def test_the_same_run_makes_the_same_page(made):
    which, text, make = made
    if which in ("plan", "simulation"):  # advice says what a clock gave
        assert str(make()) == text


@pytest.mark.parametrize("made", ["layouts"], indirect=True)
def test_a_layout_that_does_not_fit_is_red(layouts, made):
    assert "does not fit" not in made[1]
    formula = replace(layouts.winner, bytes=2 * room_of(layouts.case.given))
    seen = Seen(str(layout_page(replace(layouts, formula=formula), "does not")))
    assert sum(text.endswith(", and it does not fit") for text in seen.text) == 2  # card and table
    assert ("p", {"class": "big bad"}) in seen.tags
    assert "does not fit" in seen.text  # in the chart's legend


def test_a_chart_says_what_is_drawn_and_cuts_no_digit_of_it():
    def draw(figure):
        axis = figure.subplots()
        axis.plot([0, 1.23456789], [0, 1])
        axis.set_yticks([0.25, 0.5], ["0.25", "0.5678"])

    svg = svg_of("x", draw)
    assert "0.25</text>" in svg
    assert "0.5678</text>" in svg
    assert not re.search(r'd="[^"]*\d\.\d\d', svg)
