"""`balancer report --html` and `--plot`: what is written, and what is refused before the work."""

import importlib.util

import numpy as np
import pytest


@pytest.fixture
def planned(command):
    """A log, its plan, and the command."""
    np.save("log.npy", np.random.default_rng(0).integers(1, 900, 60))
    assert (
        command(
            "plan", "log.npy", "--ranks", 4, "--ranks-per-node", 2, "--batch-per-rank", 5, "--out", "p.parquet"
        ).code
        == 0
    )
    return command


def test_report_writes_page_and_plot(planned, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = planned("report", "p.parquet", "--html", "r.html", "--plot", "r.png", "--step", 1)
    assert outcome.code == 0, outcome.err
    assert "page written to r.html" in outcome.out
    assert "figure written to r.png" in outcome.out
    assert "Step 1 by rank" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert planned("report", "p.parquet", "--plot", "r.svg", "--json").out.startswith("{")
    assert "<svg" in (tmp_path / "r.svg").read_text()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--html", "r.parquet"), ".html"),
        (("--plot", "r.pdf"), ".png or .svg"),
        (("--step", 1), "--html"),
        (("--html", "r.html", "--step", -1), ">= 0"),
        (("--html", "r.html", "--step", 3), "3 steps"),
        (("--html", "no/r.html"), "no/r.html"),
        (("--plot", "no/r.png"), "no/r.png"),
    ],
)
def test_refused(planned, tmp_path, options, word):
    pytest.importorskip("matplotlib")
    outcome = planned("report", "p.parquet", *options)
    assert outcome.code == 2
    assert word in outcome.err
    assert "Traceback" not in outcome.err
    assert {path.name for path in tmp_path.iterdir()} == {"log.npy", "p.parquet"}


def test_a_plan_of_another_log_is_refused_and_no_page_written(planned, tmp_path):
    pytest.importorskip("matplotlib")
    np.save("other.npy", np.arange(1, 61))
    outcome = planned("report", "p.parquet", "--log", "other.npy", "--html", "r.html")
    assert outcome.code == 2
    assert "other.npy" in outcome.err
    assert not (tmp_path / "r.html").exists()


def test_without_matplotlib_the_extra_is_named(planned, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name))
    outcome = planned("report", "p.parquet", "--html", "r.html")
    assert outcome.code == 2
    assert "seqbalancer[plot]" in outcome.err
