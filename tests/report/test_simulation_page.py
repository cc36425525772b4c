"""The page of a simulation: numbers are those of the steps, names are text, and it does not grow with the ranks."""

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from page_cases import HOSTILE, shown
from rich.console import Console
from seen_page import Seen, assert_same_but_names
from simulation_cases import H100, log_of, simulated

pytest.importorskip("matplotlib")

from balancer import MicroBatches
from balancer.report.simulation_page import simulation_page
from balancer.report.simulation_table import print_simulation
from balancer.report.table import as_range, as_seconds


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return log_of(tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="module")
def run(log):
    return simulated(log)


@pytest.fixture(scope="module")
def made(run):
    return page_of(*run, "log.parquet")


def page_of(*run):
    return str(simulation_page(*run))


def words_of(text):
    return " ".join(" ".join(Seen(text).text).split())


def test_the_headline_is_what_was_found(run, made):
    found, _ = run
    words = words_of(made)
    assert "5 steps by each strategy; the log's 60 rows were read 1 times" not in words
    assert "4 GPUs ( h100 ), 4 ranks, 3 samples a rank. 5 steps by each strategy. ±" in words
    base = found.strategies["as_sampled"]
    for name, totals in found.strategies.items():
        assert f"{totals['samples_per_s'] / base['samples_per_s']:.2f} ×" in words
        assert f"{totals['mfu']:.1%}".replace("%", " %") in words
        assert f"{name} {np.mean(found.seconds(name)):.3f} {np.std(found.seconds(name), ddof=1):.3f} " in words
    saved = np.array(found.seconds("as_sampled")) - found.seconds("orchestrated")
    assert f"orchestrated {saved.mean():.3g} ± {saved.std(ddof=1) / len(saved) ** 0.5:.1g}" in words


def test_the_screen_says_what_the_page_says(run, made):
    console = Console(file=io.StringIO(), width=120)
    print_simulation(console, *run)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    words = words_of(made)
    rows = [line for line in lines if line.startswith(("as_sampled", "llm_only", "orchestrated", "vision", "llm"))]
    assert len(rows) == 3 + 3 + 3 + 6
    assert all(row in words for row in rows)
    assert sum(line in words for line in lines if "±" in line and "." in line) == 2  # the remarks


@pytest.mark.usefixtures("undrawn")
def test_one_strategy_alone_is_compared_with_none(log):
    run = simulated(log, strategies=("orchestrated",))
    words = words_of(page_of(*run, "log"))
    mfu = run[0].strategies["orchestrated"]["mfu"]
    assert f"orchestrated {mfu:.1%}".replace("%", " %") + " MFU" in words
    assert "×" not in words


@pytest.mark.usefixtures("undrawn")
def test_a_log_read_again_is_said(log):
    assert "the log's 60 rows were read 2 times" in words_of(page_of(*simulated(log, steps=10), "log"))


def test_what_is_assumed_is_stated(made):
    words = words_of(made)
    for fact in (
        "internvit-300m; 1 billion parameters", "50.0 % of a GPU's peak", "989.4 TFLOP/s", "74.5 GiB", H100.source,
        "450 GB/s a GPU and direction, 5 µs a message", "4 bytes in, 8 bytes out", "3 samples a rank",
        "placement relocate, eps 0.001", "once a phase", "0 % of exchanges hidden", "not a measurement",
    ):  # fmt: skip
        assert fact in words, fact


def test_the_slowest_steps_and_what_caps_them(run, made, log):
    import pyarrow.parquet as pq

    found, _ = run
    rows = pq.read_table(log).to_pydict()
    columns = dict(zip(("vision", "audio", "llm"), rows.values(), strict=True))
    capped = [row for row in found.table.to_pylist() if row["cap_row"] is not None]
    assert capped
    for row in capped:
        assert row["cap_row"] // 12 == row["step"]
        assert columns[row["phase"]][row["cap_row"] % found.rows] == row["cap_length"]
    for name in ("as_sampled", "orchestrated"):
        seconds = found.seconds(name)
        slowest = int(np.argmax(seconds))
        waits = found.of(name)["step_waiting_s"].drop_null().to_pylist()[slowest]
        assert f"{name} {slowest} {seconds[slowest]:.3g} {waits:.3g}" in words_of(made)


def test_a_step_of_a_strategy_is_the_sum_of_what_it_does(run):
    found, _ = run
    for name in found.strategies:
        for row in (row for row in found.of(name).to_pylist() if row["step_s"] is not None):
            parts = row["step_compute_s"] + row["step_waiting_s"] + row["step_exchange_s"]
            assert row["step_s"] == pytest.approx(parts)
            assert row["phase"] == "llm"


def test_many_ranks_and_steps_stay_small(tmp_path):
    log = log_of(tmp_path, rows=1200)
    found, assumed = simulated(log, ranks=128, batch=4, steps=2, strategies=("as_sampled", "orchestrated"))
    again = [found.table.set_column(0, "step", pc.add(found.table["step"], 2 * i)) for i in range(500)]
    text = page_of(replace(found, table=pa.concat_tables(again).combine_chunks(), steps=1000), assumed, "log")
    assert len(text.encode()) < 65_536


# --- hostile and odd ones --------------------------------------------------------------------------------------------


def test_names_are_text(log, tmp_path):
    names = [name.replace(":", "").replace("=", "") for name in HOSTILE[:3]]
    plain = Seen(page_of(*simulated(log, steps=2), "log"))
    found, assumed = simulated(log, names, steps=2)
    hostile = replace(
        assumed,
        cluster_name=HOSTILE[0],
        cluster=replace(assumed.cluster, source=HOSTILE[2] + "\U0001f680" * 999),
        model_names=dict(zip(names, HOSTILE[3:], strict=True)),
    )
    text = page_of(found, hostile, HOSTILE[-1])
    seen = Seen(text)
    assert_same_but_names(seen, plain)
    for name in (*names, *HOSTILE[3:]):
        assert any(shown(name) in piece for piece in seen.text)
    assert max(map(len, seen.text)) < 6000


@pytest.mark.parametrize(
    "options",
    [
        {"names": ("llm",), "steps": 1},
        {"strategies": ("as_sampled",), "ranks": 1},
        {"strategies": ("orchestrated",), "cut": MicroBatches(9000, over_long="own")},
        {"cut": MicroBatches(900, "pipeline", pipeline_stages=3, over_long="own", allow_empty=True)},
    ],
    ids=str,
)
def test_odd_runs_have_pages(log, options):
    seen = Seen(page_of(*simulated(log, **options), "log"))
    assert seen.open == []
    assert "nan" not in "".join(seen.text)
    assert "inf" not in "".join(seen.text).replace("information", "").replace("infeasible", "")


@pytest.mark.usefixtures("undrawn")
def test_how_many_micro_batches_every_strategy_makes(log):
    cut = simulated(log, cut=MicroBatches(900, over_long="own", allow_empty=True))
    text = " ".join(Seen(page_of(*cut, "log")).text)
    for run in cut[0].strategies.values():
        assert run["micro_batches"]["most"] > 1
        assert f" {as_range(**run['micro_batches'])} " in text
    assert " micro-batches across nodes " in " ".join(text.split())
    assert "micro-batches of at most 900" in text
    whole = " ".join(Seen(page_of(*simulated(log), "log")).text)
    assert "micro-batches" not in whole


def test_a_log_of_nothing_to_compute(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({f"c{i}": [0] * 24 for i in range(3)}), tmp_path / "log.parquet")
    seen = Seen(page_of(*simulated(tmp_path / "log.parquet", steps=2), "log"))
    assert "nan" not in "".join(seen.text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (1234.5, "1,234 s"), (999.7, "1,000 s"), (43.71, "43.7 s"), (0.99996, "1 s"), (0.0021, "2.1 ms"),
     (5e-6, "5 µs"), (3e-8, "3.0e-08 s")],
)  # fmt: skip
def test_seconds(seconds, shown):
    assert as_seconds(seconds) == shown
