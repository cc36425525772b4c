"""`balancer plan --phase`: options that cannot be, and caps that are too small, said in a line or two."""

import numpy as np
import pytest
from phases_log import FRAMES, PHASES, RANKS, SHAPE, TEXT, write_phases

ON = ("--cluster", "h100", "--model", "vision=internvit-300m", "--model", "audio=whisper-large-v3-encoder",
      "--model", "llm=qwen2-7b")  # fmt: skip


@pytest.fixture
def log(tmp_path):
    return write_phases(tmp_path)


REFUSED = {
    "length too": (("--length", "text_tokens"), ["--length cannot be combined with --phase"]),
    "cap on a column that is not there": (("--cap", "x=3"), ["log.parquet: no column 'x'"]),
    "cap of a phase that is not there": (("--cap", "x=text_tokens=3"), ["no column 'x=text_tokens'"]),
    "cap without a limit": (("--cap", "vision=text_tokens"), ["--cap 'vision=text_tokens' must be COL[+COL...]=MAX"]),
    "cap on a quantity twice": (
        ("--cap", "vision=image_patches=9", "--cap", "vision=image_patches=8"),
        ["--cap names 'image_patches' twice"],
    ),
    "least of no phase": (("--min-samples-per-rank", "x=1"), ["--min-samples-per-rank 'x=1'", "no phase 'x'"]),
    "least that is no number": (("--min-samples-per-rank", "vision=few"), ["--min-samples-per-rank must be", "'few'"]),
    "most of nothing": (("--max-samples-per-rank", 0), ["phase 'llm': --max-samples-per-rank must be >= 1, got 0"]),
    "keys that are not there": (("--keep-together", "vision=nowhere"), ["log.parquet: no column 'nowhere'"]),
    "keys that are lists": (("--keep-together", "image_widths"), ["log.parquet", "'image_widths'"]),
    "ranks that are not there": (("--allowed-ranks", "audio=nowhere"), ["log.parquet: no column 'nowhere'"]),
    "ranks outside": (
        ("--allowed-ranks", "audio=image_widths"),
        ["log.parquet: step 0: ", "image_widths of row", "must be ranks within 0..5, got"],
    ),
    "too few speeds": (
        ("--rank-speeds", "audio=1,2"),
        ["phase 'audio': --rank-speeds must have a number for each of 6 ranks, got 2"],
    ),
    "a speed of nothing": (
        ("--rank-speeds", "audio=1,1,0,1,1,1"),
        ["phase 'audio': --rank-speeds[2] must be >= 1, got 0"],
    ),
    "speeds in slots": (
        ("--rank-speeds", "1,1,1,1,1,1", "--micro-batch-tokens", 9000),
        ["phase 'llm': --micro-batch-tokens cannot be combined with --rank-speeds"],
    ),
    "speeds that are no numbers": (("--rank-speeds", "audio=fast"), ["--rank-speeds must be whole numbers", "'fast'"]),
    "loads of a phase twice": (
        ("--initial-loads", "1,1,1,1,1,1", "--initial-loads", "llm=1,1,1,1,1,1"),
        ["--initial-loads names phase 'llm' twice"],
    ),
    "what padding does not take": (
        ("--cost", "audio=padded", "--max-samples-per-rank", "audio=9"),
        ["phase 'audio': cost 'padded' does not take --max-samples-per-rank"],
    ),
    "cap of no phase": (("--max-tokens-per-rank", "x=9"), ["--max-tokens-per-rank 'x=9'", "are vision, audio, llm"]),
    "cap of a phase twice": (
        ("--max-tokens-per-rank", 9, "--max-tokens-per-rank", "llm=9"),
        ["--max-tokens-per-rank names phase 'llm' twice"],
    ),
    "cap that is no number": (("--max-tokens-per-rank", "llm=many"), ["--max-tokens-per-rank must be", "'many'"]),
    "no cap at all": (("--max-tokens-per-rank", "llm="), ["--max-tokens-per-rank 'llm=' must be NAME=VALUE"]),
    "cap of nothing": (("--max-tokens-per-rank", 0), ["phase 'llm': --max-tokens-per-rank must be >= 1, got 0"]),
    "cap of an encoder in slots": (
        ("--max-tokens-per-rank", "audio=99999", "--micro-batch-tokens", 9999),
        ["phase 'audio': --micro-batch-tokens cannot be combined with --max-tokens-per-rank", "use --encoders step"],
    ),
    "counts of no phase": (("--equal-counts=x",), ["--equal-counts x: there is no such phase", "vision, audio, llm"]),
    "counts of a file": (("--equal-counts", "second.parquet"), ["second.parquet: no such file"]),
    "counts of groups": (
        ("--equal-counts", "--group-size", 2),
        ["--equal-counts of phase 'llm' cannot be combined with --group-size"],
    ),
    "counts of a sum": (
        ("--equal-counts", "vision", "--mode", "joint"),
        ["--equal-counts of phase 'vision' cannot be combined", "--mode separate"],
    ),
    "costs of a sum": (
        ("--cost", "audio=padded", "--mode", "joint"),
        ["cost 'padded' of phase 'audio' cannot be combined", "--mode separate"],
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
    "no bytes": (("--bytes", "audio=0"), ["phase 'audio': bytes_in must be >= 1, got 0"]),
    "mode": (("--mode", "both"), ["mode must be one of separate, joint"]),
    "group size": (("--group-size", 4), ["--group-size must divide the 6 ranks, got 4"]),
    "encoders before what": (("--encoders", "step"), ["--encoders needs --micro-batch-tokens"]),
    "encoders when": (
        ("--encoders", "now", "--micro-batch-tokens", 9000),
        ["encoders must be one of 'slot', 'step', got 'now'"],
    ),
    "groups of micro-batches": (
        ("--group-size", 2, "--micro-batch-tokens", 9000),
        ["cannot be combined with --group"],
    ),
    "placement": (("--placement", "best"), ["best", "relocate"]),
    "own of an encoder": (("--own", "audio=text_tokens"), ["phase 'audio': --own is for the last phase"]),
    "nonempty": (("--every-rank-nonempty", "x"), ["--every-rank-nonempty x", "phases are vision, audio, llm"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, command, log, tmp_path):
    options, words = REFUSED[name]
    outcome = command("plan", log, *SHAPE, *PHASES, *options, "--out", "plan.parquet")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
    assert 1 <= len(outcome.err.splitlines()) <= 2
    for word in words:
        assert word in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("plan", "log.parquet", *SHAPE, "--mode", "joint", "--own", "a=b"),
            ["--own, --mode cannot be combined"],
        ),
        (("plan", "log.parquet", *SHAPE, "--length", "text_tokens", "--bytes", "a=1"), ["--bytes"]),
        (
            ("plan", "log.parquet", *SHAPE, "--length", "text_tokens", "--cost", "linear", "--cost", "padded"),
            ["--cost"],
        ),
        (("plan", "log.parquet", *SHAPE, "--length", "text_tokens", "--encoders", "step"), ["--encoders cannot be"]),
        (("plan", "log.parquet", *SHAPE), ["3 columns of integers", "--length "]),
        (("simulate", "log.parquet", *SHAPE, *PHASES, *ON, "--strategies", "x"), ["unknown strategy 'x'", "llm_only"]),
        (("simulate", "log.parquet", *SHAPE, *PHASES, *ON, "--steps", 0), ["steps must be >= 1"]),
        (("plan", "nowhere.parquet", *SHAPE, *PHASES), ["nowhere.parquet", "no such file"]),
        (("plan", "log.parquet", *SHAPE, *PHASES, "--out", "log.parquet"), ["would overwrite its log"]),
    ],
)
def test_refused_altogether(arguments, words, command, log):
    outcome = command(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    for word in words:
        assert word in outcome.err


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        (("vision=f(x)", "llm=text_tokens"), ["unknown function of items 'f'"]),
        (("vision=image_patches", "llm=lengths(image_widths)"), ["phase 'llm' computes whole samples"]),
        (
            ("vision=lengths(image_widths)", "llm=text_tokens", "--outputs", "vision=text_tokens"),
            ["has", "items but --outputs", "; write lengths(COL), of a column of lists with an entry for each item"],
        ),
    ],
)
def test_functions_of_lists_that_cannot_be(phases, words, command, log):
    vision, llm, *others = phases
    outcome = command("plan", log, *SHAPE, "--phase", vision, "--phase", llm, *others)
    assert (outcome.code, outcome.out) == (2, "")
    for word in words:
        assert word in outcome.err


def test_caps_of_phases_that_are_too_small(command, log):
    outcome = command("plan", log, *SHAPE, *PHASES, "--max-tokens-per-rank", 500, "--max-tokens-per-rank", "audio=950")
    assert (outcome.code, outcome.out) == (1, "")
    first, second = outcome.err.splitlines()
    assert "step 0: phase 'llm': row 12 has length 1091, 591 more than --max-tokens-per-rank = 500" in first
    assert "for this batch --max-tokens-per-rank must be at least" in first
    loads = np.array(TEXT) + np.array(FRAMES)
    needed = [max(step.max(), -(-step.sum() // RANKS)) for step in np.split(loads, [18, 36])]
    worst = int(np.argmax(needed))
    said = f"further on step {worst} needs --max-tokens-per-rank of phase 'llm' of at least {needed[worst]}"
    assert second == said


def test_an_infeasible_step_is_named(command, log):
    outcome = command("plan", log, *SHAPE, *PHASES, "--micro-batch-tokens", 5)
    assert (outcome.code, outcome.out) == (1, "")
    assert "log.parquet: step 0: phase 'llm'" in outcome.err
