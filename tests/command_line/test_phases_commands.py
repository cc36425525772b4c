"""`balancer plan --phase`, `report` and `compare`: phases in one plan file, numbers that anyone can recompute."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_files import description_of, plan_rows, tamper

import balancer
from balancer.strategies import STRATEGIES

RNG = np.random.default_rng(3)
ROWS, RANKS, BATCH = 50, 6, 3
TEXT = RNG.integers(1, 400, ROWS).tolist()
SIDES = [RNG.integers(20, 900, (RNG.integers(0, 4), 2)).tolist() for _ in range(ROWS)]
FRAMES = (RNG.integers(0, 2, ROWS) * RNG.integers(1, 900, ROWS)).tolist()
PATCHES = [
    sum(balancer.items.qwen2vl_patches(*np.array(sides).reshape(-1, 2).T).tolist()) if sides else 0 for sides in SIDES
]
LISTS = "(image_widths,image_heights)"
SHAPE = ("--ranks", RANKS, "--ranks-per-node", 2, "--batch-per-rank", BATCH)
PHASES = (
    "--phase", "vision=image_patches", "--phase", "audio=audio_frames", "--phase", "llm=text_tokens+audio_frames",
    "--own", "llm=text_tokens", "--bytes", "vision=7,3", "--bytes", "llm=4",
)  # fmt: skip
ITEMS = ("--items", f"vision=qwen2vl_patches{LISTS}", "--outputs", f"vision=qwen2vl_tokens{LISTS}")


@pytest.fixture
def log(tmp_path):
    columns = {
        "text_tokens": TEXT,
        "image_widths": pa.array([[w for w, _ in sides] for sides in SIDES], pa.list_(pa.int64())),
        "image_heights": pa.array([[h for _, h in sides] for sides in SIDES], pa.list_(pa.int64())),
        "image_patches": PATCHES,
        "audio_frames": FRAMES,
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    return "log.parquet"


def document_of(outcome):
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    return json.loads(outcome.out)


# --- plan and report -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["plan.parquet", "plan/"])
@pytest.mark.parametrize(
    "options",
    [
        (),
        ITEMS,
        (*ITEMS, "--mode", "joint", "--home", "strided"),
        ("--mode", "auto", "--cost", "quadratic:a=1,b=1", "--cost", "vision=linear:a=3"),
        (*ITEMS, "--group-size", 2, "--drop-last"),
        (*ITEMS, "--micro-batch-tokens", 3000),
        ("--every-rank-nonempty", "audio", "--placement", "any"),
        ("--outputs", "audio=image_patches", "--feeds", "audio=llm", "--method", "lpt"),
    ],
)
def test_report_says_what_plan_said(options, out, command, log):
    said = document_of(command("plan", log, *SHAPE, *PHASES, *options, "--out", out, "--json"))
    found = document_of(command("report", out, "--json"))
    assert list(said["phases"]) == list(found["phases"]) == ["vision", "audio", "llm"]
    for name, phase in found["phases"].items():
        for key, value in phase.items():
            if key != "fell_back_steps":  # a replayed plan does not know
                assert value == said["phases"][name][key], (name, key)
    assert found["streams"] == said["streams"]
    assert (found["steps"], found["samples"]) == (said["steps"], said["samples"])


def test_json_against_loops_over_the_plan_file(command, log):
    options = (*ITEMS, "--drop-last")
    document = document_of(command("plan", log, *SHAPE, *PHASES, *options, "--out", "plan.parquet", "--json"))
    rows = plan_rows("plan.parquet")
    per_step = RANKS * BATCH
    rank = {(r["phase"], r["sample"], r["item"]): r["rank"] for r in rows}
    patches = [balancer.items.qwen2vl_patches(*np.array(s).reshape(-1, 2).T).tolist() if s else [] for s in SIDES]
    total = inter = sent_out = 0
    before = after = mean = 0.0
    for first in range(0, ROWS - per_step + 1, per_step):
        home_loads, loads = [0] * RANKS, [0] * RANKS
        for sample in range(first, first + per_step):
            home = (sample - first) // BATCH
            for item, length in enumerate(patches[sample]):
                at, llm = rank["vision", sample, item], rank["llm", sample, 0]
                home_loads[home] += length
                loads[at] += length
                total += 7 * length
                inter += 7 * length * (home // 2 != at // 2)
                sent_out += 3 * (length // 4) * (at // 2 != llm // 2)
        before, after, mean = before + max(home_loads), after + max(loads), mean + sum(loads) / RANKS
    vision = document["phases"]["vision"]
    assert vision["imbalance_ratio_before"] == pytest.approx(before / mean)
    assert vision["imbalance_ratio_after"] == pytest.approx(after / mean)
    stream = document["streams"]["vision:in"]
    assert (stream["bytes"], stream["inter_node_bytes"]) == (total, inter)
    assert document["streams"]["vision:out"]["inter_node_bytes"] == sent_out
    assert document["streams"]["llm:own"]["bytes"] == 4 * sum(TEXT[: 2 * per_step])
    assert (document["steps"], document["samples"]) == (2, 2 * per_step)


def test_the_plan_file_is_what_the_library_plans(command, log):
    assert command("plan", log, *SHAPE, *PHASES, *ITEMS, "--out", "plan.parquet").code == 0
    description = description_of("plan.parquet")
    assert [phase["name"] for phase in description["phases"]] == ["vision", "audio", "llm"]
    assert description["source"]["unit"]["audio"] == "as recorded"
    plans = list(balancer.load_steps("plan.parquet"))
    phases = [
        balancer.Phase("vision", f"qwen2vl_patches{LISTS}", outputs=f"qwen2vl_tokens{LISTS}"),
        balancer.Phase("audio", "audio_frames"),
        balancer.Phase("llm", "total", own="text_tokens"),
    ]
    cut = slice(0, RANKS * BATCH)
    batch = {
        "image_widths": balancer.Ragged.of([[w for w, _ in sides] for sides in SIDES[cut]]),
        "image_heights": balancer.Ragged.of([[h for _, h in sides] for sides in SIDES[cut]]),
        "audio_frames": FRAMES[cut],
        "text_tokens": TEXT[cut],
        "total": [t + f for t, f in zip(TEXT[cut], FRAMES[cut], strict=True)],
    }
    direct = balancer.orchestrate(batch, phases, balancer.Topology.uniform(RANKS, 2))
    for name in ("vision", "audio"):
        assert plans[0][name].target == direct[name].target


def test_tables(command, log):
    outcome = command("plan", log, *SHAPE, *PHASES, *ITEMS, "--out", "plan.parquet")
    assert (outcome.code, outcome.err) == (0, "")
    for words in (
        "log.parquet: vision, audio, llm, 6 ranks x 3",
        "vision:in",
        "llm:own",
        "crosses nodes",
        "50 samples",
    ):
        assert words in outcome.words
    assert "plan.parquet: complete, checked" in command("report", "plan.parquet").words


def test_idle_ranks_are_counted(command, tmp_path):
    pq.write_table(pa.table({"image": [0, 0, 5, 0], "text": [1, 2, 3, 4]}), tmp_path / "log.parquet")
    arguments = ("--ranks", 4, "--batch-per-rank", 1, "--phase", "v=image", "--phase", "llm=text")
    document = document_of(command("plan", "log.parquet", *arguments, "--every-rank-nonempty", "v", "--json"))
    vision = document["phases"]["v"]
    assert (vision["idle_ranks_mean"], vision["idle_ranks_max"], vision["dummy_ranks_max"]) == (3, 3, 3)
    assert document["phases"]["llm"]["dummy_ranks_max"] == 0
    assert "ranks without an item, mean and most 3, 3" in command("plan", "log.parquet", *arguments).words


def test_a_tampered_plan_fails_the_report(command, log):
    assert command("plan", log, *SHAPE, *PHASES, *ITEMS, "--out", "plan.parquet").code == 0
    tamper("plan.parquet", lambda rows: rows.pop(0))
    outcome = command("report", "plan.parquet")
    assert (outcome.code, outcome.out) == (1, "")
    assert "step 0: phase 'vision': item " in outcome.err
    assert "is not placed" in outcome.err


# --- compare ---------------------------------------------------------------------------------------------------------


def test_compare(command, log):
    document = document_of(command("compare", log, *SHAPE, *PHASES, *ITEMS, "--json"))
    assert list(document["strategies"]) == list(STRATEGIES)
    assert (document["steps"], document["samples"]) == (3, ROWS)
    found = document["strategies"]
    for name, strategy in found.items():
        assert list(strategy["phases"]) == ["vision", "audio", "llm"]
        assert strategy["inter_node_bytes"] == sum(s["inter_node_bytes"] for s in strategy["streams"].values()), name
    sampled, planned = found["as_sampled"], found["orchestrated"]
    assert sampled["inter_node_bytes"] == found["sorted_batches"]["inter_node_bytes"] == 0
    for name, phase in planned["phases"].items():
        assert phase["imbalance_ratio_before"] == sampled["phases"][name]["imbalance_ratio_after"]
        assert phase["imbalance_ratio_bound"] <= phase["imbalance_ratio_after"]
    said = document_of(command("plan", log, *SHAPE, *PHASES, *ITEMS, "--json"))
    assert said["phases"] == planned["phases"]
    assert said["streams"] == planned["streams"]


def test_compare_prints_a_table(command, log):
    outcome = command("compare", log, *SHAPE, *PHASES, "--strategies", "as_sampled, orchestrated", "--steps", 2)
    assert (outcome.code, outcome.err) == (0, "")
    for words in ("as_sampled", "orchestrated", "best possible", "36 samples in 2 steps by each strategy"):
        assert words in outcome.words
    assert "llm_only" not in outcome.words


def test_compare_with_micro_batches_has_one_strategy(command, log):
    document = document_of(command("compare", log, *SHAPE, *PHASES, "--micro-batch-tokens", 9000, "--json"))
    assert list(document["strategies"]) == ["orchestrated"]


# --- what is refused -------------------------------------------------------------------------------------------------

REFUSED = {
    "length too": (("--length", "text_tokens"), ["--length cannot be combined with --phase"]),
    "options of one phase": (
        ("--equal-counts", "--cap", "x=3"),
        ["--equal-counts, --cap cannot be combined"],
    ),
    "no name": (("--phase", "image_patches"), ["--phase 'image_patches' must be NAME=VALUE"]),
    "no columns": (("--phase", "x="), ["--phase 'x=' must be NAME=VALUE"]),
    "twice": (("--phase", "llm=text_tokens"), ["--phase names phase 'llm' twice"]),
    "unknown column": (("--outputs", "audio=nowhere"), ["log.parquet", "'nowhere'"]),
    "unknown phase": (("--outputs", "x=text_tokens"), ["--outputs 'x=text_tokens'", "phases are vision, audio, llm"]),
    "unknown phase of a cost": (("--cost", "x=linear"), ["--cost 'x=linear'", "phases are vision, audio, llm"]),
    "unknown cost": (("--cost", "vision=cubic"), ["cubic"]),
    "two costs": (("--cost", "linear", "--cost", "padded"), ["--cost without NAME= must be given once"]),
    "bytes": (("--bytes", "audio=1,2,3"), ["--bytes must be NAME=IN or NAME=IN,OUT", "'1,2,3'"]),
    "negative bytes": (("--bytes", "audio=-1"), ["--bytes must be NAME=IN"]),
    "no bytes": (("--bytes", "audio=0"), ["bytes_in of phase 'audio' must be >= 1"]),
    "unknown function": (("--items", "vision=f(x)"), ["unknown function of items 'f'"]),
    "whole samples": (("--items", "llm=lengths(image_widths)"), ["phase 'llm' computes whole samples"]),
    "items that add up to less": (
        ("--items", "vision=lengths(image_widths)"),
        ["add up to", "row "],
    ),
    "outputs not as many": ((*ITEMS[:2], "--outputs", "vision=text_tokens"), ["has", "items but outputs"]),
    "mode": (("--mode", "both"), ["mode must be one of separate, joint, auto"]),
    "group size": (("--group-size", 4), ["--group-size must divide the 6 ranks, got 4"]),
    "groups of micro-batches": (
        ("--group-size", 2, "--micro-batch-tokens", 9000),
        ["cannot be combined with --group"],
    ),
    "placement": (("--placement", "best"), ["best", "relocate"]),
    "feeds": (("--feeds", "llm=vision"), ["phase 'llm' is the last and feeds none"]),
    "nonempty": (("--every-rank-nonempty", "x"), ["--every-rank-nonempty x", "phases are vision, audio, llm"]),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_refused(name, verb, command, log, tmp_path):
    options, words = REFUSED[name]
    if verb == "compare" and name in ("length too", "options of one phase"):
        return  # no options of compare
    outcome = command(verb, log, *SHAPE, *PHASES, *options, *(("--out", "plan.parquet") if verb == "plan" else ()))
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
    assert 1 <= len(outcome.err.splitlines()) <= 2
    for word in words:
        assert word in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "log.parquet", *SHAPE, "--mode", "joint", "--bytes", "a=1"), ["--bytes, --mode cannot be combined"]),
        (
            ("plan", "log.parquet", *SHAPE, "--length", "text_tokens", "--cost", "linear", "--cost", "padded"),
            ["--cost"],
        ),
        (("compare", "log.parquet", *SHAPE), ["compare needs phases"]),
        (("compare", "log.parquet", *SHAPE, *PHASES, "--strategies", "x"), ["unknown strategy 'x'", "llm_only"]),
        (("compare", "log.parquet", *SHAPE, *PHASES, "--steps", 0), ["steps must be >= 1"]),
        (("compare", "log.parquet", *SHAPE, *PHASES, "--window", 0), ["window must be >= 1"]),
        (("compare", "nowhere.parquet", *SHAPE, *PHASES), ["nowhere.parquet", "no such file"]),
        (("compare", "log.parquet", "--ranks", 99, "--batch-per-rank", 9, *PHASES, "--drop-last"), ["no steps"]),
        (("plan", "log.parquet", *SHAPE, *PHASES, "--out", "log.parquet"), ["would overwrite its log"]),
    ],
)
def test_refused_altogether(arguments, words, command, log):
    outcome = command(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    for word in words:
        assert word in outcome.err


def test_an_infeasible_step_is_named(command, log):
    outcome = command("plan", log, *SHAPE, *PHASES, "--micro-batch-tokens", 5)
    assert (outcome.code, outcome.out) == (1, "")
    assert "log.parquet: step 0: phase 'llm'" in outcome.err
