"""`balancer plan` of several phases: keys that cannot be, and caps that are too small, said in a line or two."""

import numpy as np
import pytest
from phases_log import FRAMES, PHASES, RANKS, SHAPE, TEXT, write_phases
from typed_words import keys


@pytest.fixture
def log(tmp_path):
    return write_phases(tmp_path)


REFUSED = {
    "cap on a column that is not there": (keys('phase.llm.caps={"x"=3}'), ["log.parquet: no column 'x'"]),
    "cap without a limit": (
        keys('phase.llm.caps={"vision"=text_tokens}'),
        ["--set phase.llm.caps: '{\"vision\"=text_tokens}' is no TOML"],
    ),
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
    "costs of a sum": (
        keys("phase.audio.cost=padded", "plan.mode=joint"),
        ["cost 'padded' of phase 'audio' cannot be combined", "mode='separate'"],
    ),
    "no name": (keys("phase.length=image_patches"), ["--set phase.length: phase was set to [{", "which is no table"]),
    "unknown column": (keys("phase.audio.outputs=nowhere"), ["log.parquet", "'nowhere'"]),
    "encoders before what": (keys("cut.encoders=step"), ["cut.tokens is missing: Elements of a micro-batch at most."]),
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
    ("phases", "words"),
    [
        (("text_tokens+image_widths", "text_tokens"), ["log.parquet: column 'image_widths' has a list for each row"]),
        (("f(x)", "text_tokens"), ["unknown function of items 'f'"]),
    ],
)
def test_functions_of_lists_that_cannot_be(phases, words, command, log):
    vision, llm = phases
    outcome = command("plan", log, *SHAPE, *keys(f"phase.vision.length={vision}", f"phase.llm.length={llm}"))
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
