"""`balancer plan` of several phases: keys that cannot be, and caps that are too small, said in a line or two."""

import numpy as np
import pytest
from phases_log import FRAMES, PHASES, RANKS, SHAPE, TEXT, write_phases
from typed_words import keys

ON = (
    "--cluster",
    "h100",
    *keys(
        "phase.vision.model=internvit-300m", "phase.audio.model=whisper-large-v3-encoder", "phase.llm.model=qwen2-7b"
    ),
)


@pytest.fixture
def log(tmp_path):
    return write_phases(tmp_path)


REFUSED = {
    "length too": (
        ("--length", "text_tokens"),
        ["--length is for a step of one phase", "--set phase.vision.length=..."],
    ),
    "cap on a column that is not there": (keys('phase.llm.caps={"x"=3}'), ["log.parquet: no column 'x'"]),
    "cap without a limit": (
        keys('phase.llm.caps={"vision"=text_tokens}'),
        ["--set phase.llm.caps: '{\"vision\"=text_tokens}' is no TOML"],
    ),
    "least that is no number": (
        keys("phase.vision.min_samples_per_rank=few"),
        ["phase.vision.min_samples_per_rank must be a whole number >= 0, got 'few'"],
    ),
    "keys that are not there": (keys("phase.vision.keep_together=nowhere"), ["log.parquet: no column 'nowhere'"]),
    "keys that are lists": (keys("phase.llm.keep_together=image_widths"), ["log.parquet", "'image_widths'"]),
    "ranks that are not there": (keys("phase.audio.allowed_ranks=nowhere"), ["log.parquet: no column 'nowhere'"]),
    "ranks outside": (
        keys("phase.audio.allowed_ranks=image_widths"),
        ["log.parquet: step 0: ", "image_widths of row", "must be ranks within 0..5, got"],
    ),
    "too few speeds": (
        keys("phase.audio.rank_speeds=[1,2]"),
        ["phase 'audio': rank_speeds must have a number for each of 6 ranks, got 2"],
    ),
    "a speed of nothing": (
        keys("phase.audio.rank_speeds=[1,1,0,1,1,1]"),
        ["phase.audio.rank_speeds must be a list of whole numbers >= 1, got [1, 1, 0, 1, 1, 1]"],
    ),
    "speeds in slots": (
        keys("phase.llm.rank_speeds=[1,1,1,1,1,1]", "cut.tokens=9000"),
        ["phase 'llm': cut.tokens cannot be combined with rank_speeds"],
    ),
    "what padding does not take": (
        keys("phase.audio.cost=padded", "phase.audio.max_samples_per_rank=9"),
        ["phase 'audio': cost 'padded' does not take max_samples_per_rank"],
    ),
    "cap of an encoder in slots": (
        keys("phase.audio.max_tokens_per_rank=99999", "cut.tokens=9999"),
        ["phase 'audio': cut.tokens cannot be combined with max_tokens_per_rank", "use encoders='step'"],
    ),
    "counts of a file": ((*keys("phase.llm.equal_counts=true"), "second.parquet"), ["second.parquet: no such file"]),
    "counts of groups": (
        keys("phase.llm.equal_counts=true", "plan.group_size=2"),
        ["equal_counts of phase 'llm' cannot be combined with group_size"],
    ),
    "counts of a sum": (
        keys("phase.vision.equal_counts=true", "plan.mode=joint"),
        ["equal_counts of phase 'vision' cannot be combined", "mode='separate'"],
    ),
    "costs of a sum": (
        keys("phase.audio.cost=padded", "plan.mode=joint"),
        ["cost 'padded' of phase 'audio' cannot be combined", "mode='separate'"],
    ),
    "no name": (keys("phase.length=image_patches"), ["--set phase.length: phase was set to [{", "which is no table"]),
    "unknown column": (keys("phase.audio.outputs=nowhere"), ["log.parquet", "'nowhere'"]),
    "unknown phase": (keys("phase.x.outputs=text_tokens"), ["phase.x.length is missing"]),
    "group size": (keys("plan.group_size=4"), ["group_size must divide the 6 ranks, got 4"]),
    "encoders before what": (keys("cut.encoders=step"), ["cut.tokens is missing: Elements of a micro-batch at most."]),
    "groups of micro-batches": (
        keys("plan.group_size=2", "cut.tokens=9000"),
        ["cut.tokens cannot be combined with group_size"],
    ),
    "own of an encoder": (keys("phase.audio.own=text_tokens"), ["phase 'audio': own is for the last phase"]),
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
            ("plan", "log.parquet", *SHAPE, "--length", "text_tokens", *keys("phase.a.bytes_in=1")),
            ["--length is for a step of one phase; say of which: --set phase.a.length=..."],
        ),
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
        (("text_tokens+image_widths", "text_tokens"), ["log.parquet: column 'image_widths' has a list for each row"]),
        (("f(x)", "text_tokens"), ["unknown function of items 'f'"]),
        (("image_patches", "qwen2vl_patches(image_widths,image_heights)"), ["phase 'llm' computes whole samples"]),
        (
            ("image_widths", "text_tokens", *keys("phase.vision.outputs=text_tokens")),
            ["has", "items but outputs", "; name a column of lists with a number for each item"],
        ),
    ],
)
def test_functions_of_lists_that_cannot_be(phases, words, command, log):
    vision, llm, *others = phases
    outcome = command("plan", log, *SHAPE, *keys(f"phase.vision.length={vision}", f"phase.llm.length={llm}"), *others)
    assert (outcome.code, outcome.out) == (2, "")
    for word in words:
        assert word in outcome.err


def test_caps_of_phases_that_are_too_small(command, log):
    outcome = command(
        "plan", log, *SHAPE, *PHASES, *keys("phase.llm.max_tokens_per_rank=500", "phase.audio.max_tokens_per_rank=950")
    )
    assert (outcome.code, outcome.out) == (1, "")
    first, second = outcome.err.splitlines()
    assert "step 0: phase 'llm': row 12 has length 1091, 591 more than max_tokens_per_rank = 500" in first
    assert "for this batch max_tokens_per_rank must be at least" in first
    loads = np.array(TEXT) + np.array(FRAMES)
    needed = [max(step.max(), -(-step.sum() // RANKS)) for step in np.split(loads, [18, 36])]
    worst = int(np.argmax(needed))
    said = f"further on step {worst} needs max_tokens_per_rank of phase 'llm' of at least {needed[worst]}"
    assert second == said


def test_an_infeasible_step_is_named(command, log):
    outcome = command("plan", log, *SHAPE, *PHASES, *keys("cut.tokens=5"))
    assert (outcome.code, outcome.out) == (1, "")
    assert "log.parquet: step 0: phase 'llm'" in outcome.err
