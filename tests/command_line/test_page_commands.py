"""`balancer report` and `simulate` with `--html`: what is written, and what is refused before the work."""

import importlib.util
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typed_words import keys


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


def test_report_writes_a_page(planned, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = planned("report", "p.parquet", "--html", "r.html")
    assert outcome.code == 0, outcome.err
    assert "page written to r.html" in outcome.out
    page = (tmp_path / "r.html").read_text()
    assert "Where ranks wait</h2>" in page
    assert "<title>p.parquet, a plan of log.npy</title>" in page
    assert planned("report", "p.parquet", "--html", "again.html", "--json").out.startswith("{")
    assert "<svg" in (tmp_path / "again.html").read_text()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--html", "r.parquet"), ".html"),
        (("--html", "no/r.html"), "no/r.html: cannot write the page: the folder"),
        (("--html", "log.npy/r.html"), "log.npy is not a folder"),
    ],
)
def test_refused(planned, tmp_path, options, word):
    pytest.importorskip("matplotlib")
    outcome = planned("report", "p.parquet", *options)
    assert outcome.code == 2
    assert word in outcome.err
    assert "Traceback" not in outcome.err
    assert {path.name for path in tmp_path.iterdir()} == {"log.npy", "p.parquet"}


def test_without_matplotlib_the_extra_is_named(planned, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name))
    outcome = planned("report", "p.parquet", "--html", "r.html")
    assert outcome.code == 2
    assert "seqbalancer[plot]" in outcome.err


# --- balancer simulate -----------------------------------------------------------------------------------------------


@pytest.fixture
def simulate(command):
    pq.write_table(pa.table({"text": np.random.default_rng(0).integers(1, 900, 60)}), "log.parquet")

    def run(*options, phase="llm"):
        shape = ("--cluster", "h100", "--ranks", 4, "--batch-per-rank", 5, *keys(f"phase.{phase}.length=text"))
        return command("simulate", "log.parquet", *shape, *keys(f"phase.{phase}.model=qwen2-7b"), *options)

    return run


def test_simulate_writes_a_page(simulate, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = simulate("--html", "s.html")
    assert outcome.code == 0, outcome.err
    assert "page written to s.html" in outcome.out
    text = (tmp_path / "s.html").read_text()
    assert "Where the time goes" in text
    assert "Exchanges move 1 byte an element: say what they move" in text
    assert "7.62 billion parameters" in text
    assert simulate("--html", "again.html", "--json").out.startswith("{")
    assert "<svg" in (tmp_path / "again.html").read_text()


def test_the_page_says_what_the_command_prints(simulate, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = simulate("--html", "s.html", "--json", "--efficiency", 0.4, "--overlap", 0.25, "--waits", "step")
    numbers = json.loads(outcome.out)["strategies"]["orchestrated"]
    text = (tmp_path / "s.html").read_text()
    assert f"{numbers['mfu']:.1%}".replace("%", " %") in text
    assert f"{numbers['samples_per_s']:,.4g}" in text
    for fact in ("40.0 % of a GPU", "25.0 % of exchanges hidden", "once a step"):
        assert fact in text


@pytest.mark.parametrize("phase", ["<script>alert(1)</script>", "\U0001f680 $x_2$"])
def test_hostile_phases_in_a_simulation(simulate, tmp_path, phase):
    pytest.importorskip("matplotlib")
    outcome = simulate("--html", "s.html", "--steps", 1, phase=phase)
    assert outcome.code == 0, outcome.err
    assert "<script" not in (tmp_path / "s.html").read_text()
