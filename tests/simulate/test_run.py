"""A log under strategies: sums and spread against steps one by one, a short log read again, the command line."""

import gc
import json
import statistics
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typed_words import keys

from balancer import MicroBatches, Phase, Topology
from balancer.cli.main import main
from balancer.io.log import open_log
from balancer.offline.settings import LogSettings
from balancer.offline.steps import compare_log
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.simulate import CLUSTERS, PhaseModel, simulate_log, step_time
from balancer.strategies import STRATEGIES

RNG = np.random.default_rng(5)
ROWS, RANKS, BATCH = 70, 4, 6
COLUMNS = {
    "text": RNG.integers(1, 400, ROWS).tolist(),
    "patches": (RNG.integers(0, 2, ROWS) * RNG.integers(1, 3000, ROWS)).tolist(),
    "frames": (RNG.integers(0, 2, ROWS) * RNG.integers(1, 900, ROWS)).tolist(),
}
PHASES = (
    Phase("vision", "patches", bytes_in=3, bytes_out=5),
    Phase("audio", "frames", bytes_in=2, bytes_out=5),
    Phase("llm", "text+frames", own="text", bytes_in=4),
)
H100 = CLUSTERS["h100"]
MODELS = {
    name: PhaseModel.on(model, H100.peak_flops, 0.5)
    for name, model in {
        "vision": "internvit-300m",
        "audio": "whisper-large-v3-encoder",
        "llm": "qwen2-7b",
    }.items()
}
OPTIONS = (
    *("--cluster", "h100", "--ranks", RANKS, "--ranks-per-node", 2, "--batch-per-rank", BATCH),
    *keys("phase.vision.length=patches", "phase.vision.bytes_in=3", "phase.vision.bytes_out=5"),
    *keys("phase.audio.length=frames", "phase.audio.bytes_in=2", "phase.audio.bytes_out=5"),
    *keys("phase.llm.length=text+frames", "phase.llm.own=text", "phase.llm.bytes_in=4"),
    *keys("phase.vision.model=internvit-300m", "phase.audio.model=whisper-large-v3-encoder"),
    *keys("phase.llm.model=qwen2-7b"),
)


@pytest.fixture
def log(tmp_path):
    pq.write_table(pa.table(COLUMNS), tmp_path / "log.parquet")
    return str(tmp_path / "log.parquet")


def settings(batch=BATCH, drop_last=False, **planned):
    return LogSettings(Setup(Topology.uniform(RANKS, 2), PHASES, PlanSettings(**planned)), batch, drop_last=drop_last)


def test_totals_against_steps_one_by_one(log):
    found = simulate_log(open_log(log), settings(), MODELS, H100, overlap=0.25)
    assert (found.steps, found.rows, found.passes) == (2, ROWS, 48 / 70)
    assert list(found.strategies) == list(STRATEGIES)
    for strategy, totals in found.strategies.items():
        plans = [plan for _, plan in compare_log(open_log(log), settings(drop_last=True), (strategy,))]
        steps = [step_time(plan, MODELS, H100, overlap=0.25) for plan in plans]
        seconds = [step.seconds for step in steps]
        numbers = totals
        assert numbers["step_s"]["mean"] == pytest.approx(statistics.mean(seconds))
        assert numbers["step_s"]["deviation"] == pytest.approx(statistics.stdev(seconds))
        assert (numbers["step_s"]["fastest"], numbers["step_s"]["slowest"]) == (min(seconds), max(seconds))
        whole = numbers["compute_s"] + numbers["waiting_s"] + numbers["exchange_s"]
        assert whole == pytest.approx(numbers["step_s"]["mean"])
        assert numbers["samples_per_s"] == pytest.approx(48 / sum(seconds))
        useful = sum(step.useful_flops for step in steps)
        assert numbers["mfu"] == pytest.approx(useful / (RANKS * H100.peak_flops * sum(seconds)))
        assert numbers["activation_bytes"] == max(step.activation_bytes for step in steps)
        for name, phase in numbers["phases"].items():
            assert phase["peak_tokens"] == max(step.phases[name].peak_tokens for step in steps)


def test_strategies_do_the_same_work(log):
    found = simulate_log(open_log(log), settings(), MODELS, H100)
    by_name = found.strategies
    work = [sum(phase["useful_flops"] for phase in numbers["phases"].values()) for numbers in by_name.values()]
    assert work == pytest.approx([work[0]] * len(work))
    assert by_name["as_sampled"]["exchange_s"] == 0
    assert by_name["orchestrated"]["exchange_s"] > 0
    assert by_name["orchestrated"]["waiting_s"] < by_name["llm_only"]["waiting_s"] < by_name["as_sampled"]["waiting_s"]


def test_a_short_log_is_read_again(log, tmp_path):
    found = simulate_log(open_log(log), settings(), MODELS, H100, strategies=["orchestrated"], num_steps=7)
    again = {name: (values * 3)[: 7 * RANKS * BATCH] for name, values in COLUMNS.items()}
    pq.write_table(pa.table(again), tmp_path / "long.parquet")
    long = simulate_log(open_log(tmp_path / "long.parquet"), settings(), MODELS, H100, strategies=["orchestrated"])
    assert (found.steps, long.steps) == (7, 7)
    assert found.passes == 7 * 24 / 70
    assert found.strategies == long.strategies
    assert found.seconds("orchestrated") == long.seconds("orchestrated")


def peak_bytes(log, strategies, num_steps):
    """Most bytes held at a time, in a second run: the first may compile or load kernels that stay in memory."""
    big = settings(batch=200)
    simulate_log(open_log(log), big, MODELS, H100, strategies=strategies, num_steps=8)
    gc.collect()
    tracemalloc.start()
    simulate_log(open_log(log), big, MODELS, H100, strategies=strategies, num_steps=num_steps)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_grows_with_the_rows_of_a_table_and_not_with_plans(log):
    """A row, of which a step has three for phases and five for streams, takes a kilobyte or so; a plan some hundred."""
    strategies = ("as_sampled", "orchestrated")
    grown = peak_bytes(log, strategies, 16) - peak_bytes(log, strategies, 8)
    assert grown < 8 * len(strategies) * 8 * 2048


def test_a_log_of_less_than_a_step(tmp_path):
    pq.write_table(pa.table({name: values[:5] for name, values in COLUMNS.items()}), tmp_path / "few.parquet")
    found = simulate_log(open_log(tmp_path / "few.parquet"), settings(), MODELS, H100)
    assert (found.steps, found.rows, found.passes) == (1, 5, 24 / 5)
    assert set(found.table["samples"].to_pylist()) == {24}
    assert found.strategies["as_sampled"]["step_s"]["deviation"] == 0


def test_every_strategy_in_micro_batches(log):
    """The same work in the same batches, and less of it held at a time."""
    cut = simulate_log(open_log(log), settings(cut=MicroBatches(1300)), MODELS, H100)
    whole = simulate_log(open_log(log), settings(), MODELS, H100)
    assert list(cut.strategies) == list(STRATEGIES)
    for strategy, totals in cut.strategies.items():
        before = whole.strategies[strategy]
        for name, phase in totals["phases"].items():
            assert phase["useful_flops"] == pytest.approx(before["phases"][name]["useful_flops"])
        assert totals["activation_bytes"] < before["activation_bytes"]
        assert totals["phases"]["llm"]["peak_tokens"] <= 1300
        assert 1 <= totals["micro_batches"]["fewest"] <= totals["micro_batches"]["most"] > 1
        assert before["micro_batches"] == {"fewest": 1, "most": 1}
    taken = {name: totals["step_s"]["mean"] for name, totals in cut.strategies.items()}
    assert taken["orchestrated"] < taken["llm_only"] < taken["as_sampled"]


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def command(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(stopped.value.code or 0), printed.out, printed.err

    return run


LINEAR = [word for name in ("vision", "audio", "llm") for word in ("--set", f"phase.{name}.cost=linear")]


def test_json_is_what_the_library_says(log, command):
    code, out, err = command("simulate", log, *OPTIONS, *LINEAR, "--overlap", 0.25, "--steps", 3, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    found = simulate_log(open_log(log), settings(), MODELS, H100, overlap=0.25, num_steps=3)
    saved = {name: of.pop("saved_s", None) for name, of in document["strategies"].items()}
    assert document["strategies"] == found.strategies
    assert {name for name, pair in saved.items() if pair} == {*STRATEGIES} - {"as_sampled"}
    assert (document["steps"], document["rows"], document["passes"]) == (3, ROWS, 72 / 70)
    assert document["assumed"] == {"efficiency": 0.5, "checkpointing": False, "overlap": 0.25, "waits": "phase"}


def test_phases_are_planned_by_their_models_unless_told_otherwise(log, command):
    def waiting(*more):
        code, out, err = command("simulate", log, *OPTIONS, "--strategies", "orchestrated", "--json", *more)
        assert (code, err) == (0, "")
        return json.loads(out)["strategies"]["orchestrated"]["phases"]["vision"]["waiting_s"]

    by_flops, by_tokens = waiting(), waiting("--set", "phase.vision.cost=linear")
    assert by_flops < by_tokens
    assert waiting("--set", "phase.vision.cost=flops:internvit-300m") == by_flops


def test_the_table_says_what_was_assumed(log, command):
    code, out, err = command("simulate", log, *OPTIONS, "--steps", 6, "--efficiency", 0.4, "--checkpointing")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    for strategy in STRATEGIES:
        assert strategy in words
    assert "6 steps by each strategy; the log's 70 rows were read 2.06 times" in words
    assert "computing at 40.0 % of a GPU's peak" in words
    assert "0 % of exchanges hidden" in words
    assert "…" not in out


def test_more_than_a_gpu_holds_is_said(log, command, tmp_path):
    from dataclasses import asdict, replace

    (tmp_path / "small.json").write_text(json.dumps(asdict(replace(H100, memory_bytes=1e6))))
    code, out, _ = command("simulate", log, *OPTIONS[2:], "--cluster", tmp_path / "small.json")
    assert code == 0
    assert "Activations alone take more than the 0.000931 GiB of a GPU with as_sampled" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "phase.vision.model=vit-9"), "phase.vision.model is set twice"),
        (("--ranks-per-node", 16), "ranks_per_node must be <= 8: a node has 8 GPUs and a rank 1; got 16"),
        (("--set", "gpus_per_rank=3"), "gpus_per_rank must divide the 8 GPUs of a node"),
        (("--ranks", 12, "--ranks-per-node", 5), "ranks must be a multiple of ranks_per_node"),
        (("--efficiency", 1e-320), "a step would take"),
        (("--set", "phase.audio.pieces=0"), "phase.audio.pieces must be a whole number >= 1, got 0"),
        (("--set", "phase.text.pieces=9"), "phase 'text' has no model; name one: --set phase.text.model=MODEL"),
    ],
)
def test_bad_options(options, message, log, command):
    pairs = zip(OPTIONS[::2], OPTIONS[1::2], strict=True)
    others = [pair for pair in pairs if pair[0] == "--set" or pair[0] not in options]  # others are given once
    code, out, err = command("simulate", log, *[word for pair in others for word in pair], *options)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) <= 2


def test_ranks_that_do_not_fill_nodes(log, command):
    few = ("--cluster", "h100", "--batch-per-rank", 2, "--steps", 1)
    few += keys("phase.llm.length=text", "phase.llm.model=qwen2-7b")
    code, _, err = command("simulate", log, "--ranks", 12, *few)
    assert code == 2
    assert "ranks must be a multiple of the 8 ranks that a node of the cluster has, or fewer, got 12" in err
    assert command("simulate", log, "--ranks", 12, "--ranks-per-node", 6, *few)[0] == 0


def test_one_phase_that_nobody_names(log, command):
    """The same seconds as a phase of the same column with a name, but for the stream that only a name gives it."""
    shape = ("--cluster", "h100", "--ranks", RANKS, "--ranks-per-node", 2, "--batch-per-rank", BATCH, "--json")
    documents = []
    for asked in (
        ("--length", "text", "--model", "qwen2-7b"),
        ("--set", "phase.llm.length=text", "--set", "phase.llm.model=qwen2-7b"),
    ):
        code, out, err = command("simulate", log, *shape, *asked)
        assert (code, err) == (0, "")
        documents.append(json.loads(out)["strategies"])
    alone, named = documents
    assert list(alone) == list(named) == list(STRATEGIES)
    for strategy in STRATEGIES:
        assert list(alone[strategy]["phases"]) == ["all"]
        assert alone[strategy]["phases"]["all"] == named[strategy]["phases"]["llm"]
        assert alone[strategy]["step_s"] == named[strategy]["step_s"]
    waits = {strategy: alone[strategy]["waiting_s"] for strategy in STRATEGIES}
    assert waits["orchestrated"] < waits["as_sampled"]
    code, out, err = command(
        "simulate", log, *shape[:-1], "--length", "text", "--model", "qwen2-7b", "--set", "phase.all.bytes_in=2"
    )
    assert (code, err) == (0, "")
    assert "text, 4 ranks x 6" in " ".join(out.split())


def test_a_phase_without_a_model(log, command):
    shape = ("--cluster", "h100", "--ranks", 2, "--batch-per-rank", 2)
    code, _, err = command("simulate", log, *shape, "--set", "phase.llm.length=text")
    assert (code, err) == (2, "balancer: phase 'llm' has no model; name one: --set phase.llm.model=MODEL\n")
    code, _, err = command("simulate", log, *shape, "--length", "text")
    assert (code, err) == (2, "balancer: phase 'all' has no model; name one: --set phase.all.model=MODEL\n")
    code, _, err = command("simulate", log, *shape, "--set", "phase.llm.length=text", "--set", "phase.llm.model=qwen9")
    assert code == 2
    assert "unknown model 'qwen9'; known are qwen2-7b" in err


def test_every_phase_needs_a_model(log):
    models = {name: model for name, model in MODELS.items() if name != "audio"}
    with pytest.raises(ValueError, match="phase 'audio' has no model; there are models for vision, llm"):
        simulate_log(open_log(log), settings(), models, H100)
