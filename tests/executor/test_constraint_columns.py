"""Constraints inside a trainer: those of balance, with columns of each rank's mini-batch where it takes arrays."""

import column_cases as cases
import pytest

pytest.importorskip("torch")

from ranks_of import ranks_of

from balancer import MicroBatches, Phase, Topology
from balancer.executor.arguments import as_setup

CASES = ["caps", "keep_together", "allowed_ranks", "pinned", "equal_counts", "counts", "speeds", "prefix", "together"]


ranks = ranks_of(1, 4)


@pytest.mark.parametrize("way", ["replicate", "broadcast"])
@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_that_of_balance(ranks, case, way):
    held = ranks.run(cases.plans_as_balance_does, case, way)
    assert sum(map(len, held)) == len({key for keys in held for key in keys})  # a key is on one rank


@pytest.mark.parametrize("way", ["replicate", "broadcast"])
def test_micro_batches_keep_their_limits(ranks, way):
    first, *others = ranks.run(cases.limits_of_micro_batches, way)
    assert len(first) > 1
    assert others == [first] * (ranks.size - 1)  # patches are on all ranks of a slot, or on none


def test_a_field_of_several_items_counts_with_all_of_them(ranks):
    ranks.run(cases.lists_are_summed)


@pytest.mark.parametrize(
    ("settings", "columns", "name", "text"),
    [
        ({"caps": {"pixels": 9}}, {}, "ValueError", "no column 'pixels'; columns there are: "),
        ({"caps": {"patches": 1}}, {}, "InfeasibleError", "patches = 1"),
        (
            {"keep_together": "book"},
            {},
            "ValueError",
            "no column 'book'; columns there are: tokens, uid, prompt_tokens, ",
        ),
        ({"keep_together": "ranks"}, {}, "ArgumentError", "a column of one key a sample, got 'ranks', of lists"),
        (
            {"allowed_ranks": "pinned"},
            {"pinned": [99] * 9},
            "UsageError",
            "pinned of sample 0 (entry 0 of rank 0) must be ranks within 0..",
        ),
        ({"allowed_ranks": "ranks"}, {"ranks": [[]] * 8 + [[0]]}, "InfeasibleError", "sample 0"),
    ],
)
def test_what_no_step_can_keep_is_an_error_on_all(ranks, settings, columns, name, text):
    for found, _, traceback in ranks.errors(cases.wrong, settings, columns):
        assert found == name, traceback
        assert text in traceback


FOUR = Topology.uniform(4, None)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"cap": 3}, TypeError, "no setting 'cap'; those there are: allowed_ranks, caps, cut"),
        ({"caps": {"patches": 0.5}}, ValueError, "caps must map columns to whole numbers >= 1; 'patches' has 0.5"),
        ({"caps": [("patches", 3)]}, TypeError, "caps must be a table of columns"),
        ({"allowed_ranks": [[True] * 4]}, TypeError, "allowed_ranks must name a column"),
        ({"keep_together": 3}, TypeError, "keep_together must name a column"),
        ({"rank_speeds": [1, 2]}, ValueError, "a number for each of 4 ranks"),
        ({"min_samples_per_rank": -1}, ValueError, "min_samples_per_rank must be a whole number >= 0, got -1"),
        ({"method": "best"}, ValueError, "method must be one of .*, got 'best'"),
        ({"placement": "home"}, ValueError, "placement"),
        ({"eps": -1}, ValueError, "eps must be"),
        ({"time_budget": -1}, ValueError, "time_budget must be"),
        ({"cut": 512}, TypeError, r"cut must be one of balancer's cuts, such as MicroBatches\(8192\), got 512"),
        ({"allow_empty": True}, TypeError, "no setting 'allow_empty'; those there are: .* cut, "),
        ({"cut": MicroBatches(9), "rank_speeds": [1] * 4}, ValueError, "cannot be combined with rank_speeds"),
        ({"cut": MicroBatches(9), "initial_loads": [1] * 4}, ValueError, "combined with initial_loads"),
        ({"min_samples_per_rank": 3, "max_samples_per_rank": 2}, ValueError, "contradicts max_samples_per_rank = 2"),
        ({"method": "lpt", "cut": MicroBatches(9)}, ValueError, "method 'lpt' makes no micro-batches"),
        ({"caps": {"patches+": 3}}, ValueError, "no column ''"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_the_first_step(settings, error, text):
    with pytest.raises(error, match=text):
        as_setup(FOUR, None, "linear", None, settings)


def test_a_step_of_too_few_samples_says_what_permits_it(ranks):
    for _, _, text in ranks.errors(cases.too_few_samples, {}) if ranks.size > 1 else ():
        assert "allow_empty=True permits empty micro-batches" in text
    ranks.run(cases.too_few_samples, {"allow_empty": True})


def test_settings_that_do_not_go_together_are_refused_before_the_first_step():
    with pytest.raises(ValueError, match="with padding only equal_counts, max_tokens_per_rank and min_samples"):
        as_setup(FOUR, None, "padded", None, {"caps": {"patches": 3}})
    with pytest.raises(TypeError, match="with phases, constraints are those of each Phase"):
        as_setup(FOUR, [Phase("llm", "tokens")], "linear", None, {"max_tokens_per_rank": 3})
    with pytest.raises(ValueError, match="leave length and cost out"):
        as_setup(FOUR, [Phase("llm", "tokens")], "linear", "tokens", {})


def test_errors_say_which_entry_of_which_rank_a_sample_is(ranks):
    last = ranks.size - 1
    for way in ("replicate", "broadcast"):
        found = ranks.errors(cases.one_sample_fits_nowhere, last, way)
        planners = found if way == "replicate" else found[:1]
        assert all(name == "InfeasibleError" for name, _, _ in planners)
        assert all(f"sample {9 * last + 4} (entry 4 of rank {last}) has length 70" in text for _, _, text in planners)
    for column, given in (("tokens", -1), ("patches", -1), ("images", [3, -1])):
        for name, _, text in ranks.errors(cases.one_length_is_negative, last, column, given):
            assert name == "UsageError"  # a ValueError
            assert f"column '{column}' of sample {9 * last + 4} (entry 4 of rank {last}) must be >= 0, got -1" in text
    ranks.run(cases.keys_may_be_negative)
    for name, _, text in ranks.errors(cases.items_that_do_not_fit, last):
        assert name == "ValueError"
        assert f"of sample {3 * last + 1} (entry 1 of rank {last}), 'vision' has 1 items of it" in text


@pytest.mark.parametrize(
    ("phases", "length", "settings", "text"),
    [
        (None, "text+", {}, "no column ''"),
        (None, "qwen2vl_patches(w,h)", {}, "must be columns of numbers"),
        ([], None, {}, "at least one phase"),
        ([Phase("v", "p"), Phase("v", "t")], None, {}, "phases must have different names"),
        ([Phase("v", "p", outputs="lengths("), Phase("llm", "t")], None, {}, "must be FUNCTION"),
        ({"v": "p", "llm": "t"}, None, {"mode": "both"}, "mode must be one of separate, joint, got 'both'"),
        ({"v": "p", "llm": "t"}, None, {"group_size": 3}, "group_size must divide the 4 ranks"),
    ],
)
def test_what_no_step_can_be_planned_by_is_refused_before_the_first(phases, length, settings, text):
    with pytest.raises(ValueError, match=text):
        as_setup(FOUR, phases, "linear", length, settings)


@pytest.mark.parametrize(
    "settings", [{"min_samples_per_rank": 1}, {"cut": MicroBatches(9)}, {"equal_counts": True}, {"method": "exact"}]
)
def test_a_rehearsal_without_samples_refuses_nothing_that_needs_some(settings):
    as_setup(FOUR, None, "linear", "tokens", settings)
    phases = [Phase("v", "images", every_rank_nonempty=True), Phase("llm", "text", own="pieces")]
    as_setup(FOUR, phases, "linear", None, {"mode": "joint"})


def test_arguments_that_cannot_be_are_refused_by_the_dispatcher(ranks):
    for arguments, name, text in cases.ARGUMENTS_THAT_CANNOT_BE:
        for found, _, traceback in ranks.errors(cases.makes, arguments):
            assert found == name
            assert text in traceback
