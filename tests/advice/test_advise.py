"""Advice: what is computed on a log, what it says, and what it says nothing about."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import balancer
from balancer.advice import sample as sampling
from balancer.advice.remedies import REMEDIES
from balancer.advice.sample import sample_of
from balancer.advice.tried import Tried
from balancer.advice.words import lines_of, measured_line, to_paste
from balancer.cli.main import main
from balancer.offline.step_table import full_steps, table_of, total
from balancer.offline.steps import compare_log, read_rows
from balancer.report.plan_log import opened_by, settings_of


def long_tailed(n, seed=0, sigma=1.5):
    return np.minimum(np.random.default_rng(seed).lognormal(5, sigma, n), 20_000).astype(int) + 1


def ways(advice):
    return {each.name: each for each in advice.rows[1:]}


@pytest.fixture(scope="module")
def advice():
    return balancer.advise({"tokens": long_tailed(640)}, num_ranks=8, batch_per_rank=8, price=2.5, gpus_per_rank=2)


def test_within_the_step_it_says_what_a_plan_of_the_log_does(advice):
    numbers = balancer.plan_log({"tokens": long_tailed(640)}, num_ranks=8, batch_per_rank=8).summary()["phases"]["all"]
    assert advice.today.waiting == pytest.approx(numbers["waiting_before"], abs=1e-12)
    assert advice.within.waiting == pytest.approx(numbers["waiting_after"], abs=1e-12)
    assert advice.least == pytest.approx(numbers["imbalance_ratio_best_possible"])
    assert advice.within.time == pytest.approx(numbers["imbalance_ratio_after"] / numbers["imbalance_ratio_before"])
    assert (advice.cap.steps, advice.cap.row) == (numbers["capped_steps"], numbers["capping_sample"]["row"])
    assert advice.cap.length == numbers["capping_sample"]["length"]


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_deferral_takes_what_a_plan_of_it_takes(advice, steps):
    plan = balancer.plan_log({"tokens": long_tailed(640)}, num_ranks=8, batch_per_rank=8, window=steps).summary()
    found, numbers = ways(advice)[f"defer_{steps}"], plan["phases"]["all"]
    assert found.waiting == pytest.approx(numbers["waiting_after"], abs=1e-12)
    even = 1 - advice.today.waiting  # of all that today takes; the plan says it rounded up
    assert found.time == pytest.approx(even * numbers["imbalance_ratio_after"])
    assert found.best_possible == pytest.approx(even * plan["across_steps"]["imbalance_ratio_best_possible"], rel=1e-4)


def test_no_way_beats_its_bound_or_even_ranks(advice):
    for each in ways(advice).values():
        if not each.why_not:
            assert 1 - advice.today.waiting - 1e-9 <= each.best_possible <= each.time + 1e-9 <= 1 + 1e-9
            assert 0 <= each.waiting < 1
    assert {name for name, each in ways(advice).items() if each.why_not} == {"shared_prompts"}


def test_hours_and_money_follow_from_the_time(advice):
    assert advice.gpus == 16
    found = advice.summary()
    for each in advice.chosen:
        hours = 24 * 16 * (1 - each.time)
        assert found["ways"][each.name]["gpu_hours_a_day"] == pytest.approx(hours)
        assert found["saved_a_day"][each.name] == pytest.approx(2.5 * hours)
    assert f"{2.5 * advice.hours_a_day(advice.within):,.0f} at 2.5 a GPU hour" in str(advice)


def test_what_it_says_is_the_same_every_time(advice):
    again = balancer.advise({"tokens": long_tailed(640)}, num_ranks=8, batch_per_rank=8, price=2.5, gpus_per_rank=2)
    mine, theirs = advice.summary(), again.summary()
    assert {**mine, "log": 0} == {**theirs, "log": 0}
    assert str(advice) == str(again)
    assert " ms " in measured_line(advice)
    assert " ms " not in str(advice)


def test_the_remedy_that_asks_least_is_chosen_among_equals(advice):
    first, second, third = (
        replace(advice.within, name=name, saves=saves, time=time)
        for name, saves, time in (("a", 0.1, 0.9), ("b", 0.395, 0.605), ("c", 0.4, 0.6))
    )
    assert replace(advice, remedies=(first, second, third)).best == second
    assert replace(advice, remedies=(replace(first, saves=0.009),)).best is None
    assert [each.name for each in advice.remedies] == [each.name for each in REMEDIES]


@pytest.mark.parametrize("lengths", [[1000] * 640, [0] * 640])
def test_where_lengths_are_equal_there_is_nothing_to_gain(lengths):
    found = balancer.advise({"tokens": lengths}, num_ranks=8, batch_per_rank=8)
    assert found.chosen == ()
    assert "There is nothing to gain here: ranks wait 0.0 % of the time" in str(found)
    assert "loader" not in str(found)
    # What cannot gain is not planned, and so compiles nothing.
    *others, prompts = found.remedies
    assert {each.why_not.partition(":")[0] for each in others} == {"nothing to gain"}
    assert prompts.why_not.startswith("no columns say")


def test_one_rank_waits_for_nobody():
    found = balancer.advise({"tokens": long_tailed(640)}, num_ranks=1, batch_per_rank=8)
    assert (found.today.waiting, found.chosen) == (0.0, ())


def test_a_log_of_one_row_says_nothing_of_full_steps():
    found = balancer.advise({"tokens": [7]}, num_ranks=8, batch_per_rank=4)
    assert "The log holds less than one step (1 sample)" in str(found)
    assert "nothing of full steps" in str(found)
    assert ways(found)["defer_1"].why_not == "the log has no second step"


def test_shared_prompts_are_found_by_their_columns_and_by_name():
    key = np.repeat(np.arange(64), 8)
    prompt = np.random.default_rng(1).integers(500, 4000, 64)[key]
    columns = {"uid": key, "prompt_tokens": prompt, "tokens": prompt + long_tailed(512)}
    asked = {"num_ranks": 16, "batch_per_rank": 8, "length": "tokens"}
    found = balancer.advise(columns, **asked)
    shared = ways(found)["shared_prompts"]
    assert shared.time < 1 - found.today.waiting  # less work, not only less waiting
    assert shared.options == {"phase.all.prefix": "uid", "phase.all.prefix_length": "prompt_tokens"}
    renamed = {"p": key, "q": prompt, "tokens": columns["tokens"]}
    said = balancer.advise(renamed, prefix="p", prefix_length="q", **asked)
    assert ways(said)["shared_prompts"].time == shared.time
    assert said.within.time == found.within.time  # whole prompts
    assert ways(balancer.advise(renamed, **asked))["shared_prompts"].why_not


def test_several_phases_are_added_up_and_the_last_alone_stands_beside_today():
    lengths = long_tailed(320)
    batch = {"patches": lengths // 2, "tokens": lengths + 100}
    asked = {"num_ranks": 8, "batch_per_rank": 8, "phases": {"vision": "patches", "llm": "tokens"}}
    found = balancer.advise(batch, **asked)
    full = full_steps(balancer.plan_log(batch, **asked).steps)
    assert found.within.time == pytest.approx(total(full["after"]) / total(full["before"]))
    assert "MB a step" in str(found)
    with opened_by(batch, None, asked) as (log, said):
        plans = [plan for _, plan in compare_log(log, settings_of(log, said, asked), ["llm_only"])]
    before, after = (sum(getattr(plan[name], of) for plan in plans for name in ("vision", "llm"))
                     for of in ("home_makespan", "makespan"))  # fmt: skip
    alone = found.last_alone
    assert alone.time == pytest.approx(after / before)
    assert found.within.time < alone.time < 1
    assert (alone.title, alone.beside, found.within.beside) == ("only llm balanced", *["today, as sampled"] * 2)
    rows = str(found).split("\n")[2:]
    assert rows[2].startswith("only llm balanced")
    assert rows[2].endswith("today, as sampled")
    assert found.last_alone not in found.chosen
    assert "llm_only" in found.summary()["ways"]


def test_every_row_says_beside_which_row_it_stands(advice):
    assert advice.today.beside == ""
    assert advice.last_alone is None
    assert {each.beside for each in advice.remedies} == {advice.within.title}
    for each in advice.remedies:
        if not each.why_not:
            assert each.saves == pytest.approx(1 - each.time / advice.within.time)


@pytest.mark.parametrize("name", ["step_tokens", "sequence_groups", "context_shards"])
def test_a_remedy_takes_what_a_plan_made_by_hand_takes(advice, name):
    """By the words that are to be pasted into Python."""
    found = ways(advice)[name]
    keywords = eval(f"dict({found.keywords})", {"balancer": balancer})
    asked = {"num_ranks": 8, "batch_per_rank": 8, "drop_last": True} | keywords
    plan = balancer.plan_log({"tokens": long_tailed(640)}, **asked)
    steps = full_steps(plan.steps)
    assert found.steps == len(steps)
    assert found.waiting == pytest.approx(1 - total(steps["even"]) / total(steps["after"]), abs=1e-12)
    scale = (1 - advice.today.waiting) / total(steps["even"])  # of even ranks, in today's time
    assert found.time == pytest.approx(scale * total(steps["after"]))
    assert found.best_possible == pytest.approx(scale * total(steps["bound"]))


def test_costs_that_cannot_be_added_up_are_refused():
    batch = {"patches": [8, 9, 7, 5], "tokens": [90, 80, 70, 60]}
    phases = [balancer.Phase("vision", "patches"), balancer.Phase("llm", "tokens", cost="flops:qwen2-7b")]
    with pytest.raises(ValueError, match="must be in one unit to be added up"):
        balancer.advise(batch, num_ranks=2, batch_per_rank=2, phases=phases)


def test_pipelines_are_planned_within_the_step():
    cut = balancer.Pipelines(4096, count=4, stages=balancer.PipelineStages.of(2))
    log = {"tokens": np.minimum(long_tailed(128, sigma=1), 2000)}
    found = balancer.advise(log, num_ranks=2, batch_per_rank=16, cut=cut)
    assert found.gpus == 4  # one a stage
    assert found.within.saves > 0.01
    assert "stages of a pipeline share no samples" in ways(found)["sequence_groups"].why_not
    assert not ways(found)["defer_2"].why_not


@pytest.mark.parametrize(("given", "said"), [
    ({"price": float("nan")}, "price must be >= 0"), ({"price": -1}, "price must be >= 0"),
    ({"price": "two"}, "price must be a number"), ({"gpus_per_rank": 0}, "gpus_per_rank must be >= 1"),
    ({"rankz": 4}, "advise has no argument 'rankz'"),
    ({"window": 2}, "window is tried anyhow"), ({"shuffle": 3}, "shuffle changes no advice"),
    ({"cut": balancer.SequenceGroups((1, 2))}, "sequence_groups are tried anyhow"),
    ({"cut": balancer.ContextShards(2, 4096)}, "context_shards are tried anyhow"),
])  # fmt: skip
def test_what_cannot_be_is_refused_by_name(given, said):
    with pytest.raises((ValueError, TypeError), match=re.escape(said)):
        balancer.advise({"tokens": long_tailed(64)}, num_ranks=4, batch_per_rank=4, **given)


def test_a_free_gpu_hour_is_a_price():
    assert set(balancer.advise({"tokens": long_tailed(64)}, num_ranks=4, batch_per_rank=4, price=0).summary()
               ["saved_a_day"].values()) == {0.0}  # fmt: skip


def sampled(path, **beside):
    with opened_by(path, None, beside) as (log, said):
        return sample_of(log, settings_of(log, said, beside)), log, settings_of(log, said, beside)


def test_a_long_log_is_sampled_evenly(tmp_path):
    path = str(tmp_path / "log.parquet")
    pq.write_table(pa.table({"tokens": np.arange(8 * 1000) + 5}), path, row_group_size=1024)
    found, log, settings = sampled(path, num_ranks=4, batch_per_rank=2)
    assert (found.num_steps, found.steps_of_log, len(found.stretches)) == (64, 1000, 4)
    for each, first in zip(found.stretches, (0, 328, 656, 984), strict=True):
        rows = read_rows(log, settings).sums["tokens"][slice(*each.rows)]
        assert rows.tolist() == list(range(8 * first + 5, 8 * (first + 16) + 5))
    fewer = found.of_steps(8)
    assert [each.num_rows for each in fewer.stretches] == [16] * 4
    assert [each.first_row for each in fewer.stretches] == [8 * first for first in (0, 328, 656, 984)]
    assert found.in_words(64) == "64 of some 1,000 steps, evenly from rows 0, 2,624, 5,248, 7,872 on"


def test_of_text_steps_are_spread_too(tmp_path, monkeypatch):
    path = str(tmp_path / "log.csv")
    pa_csv.write_csv(pa.table({"tokens": long_tailed(3000)}), path)
    found, *_ = sampled(path, num_ranks=4, batch_per_rank=2)
    assert (found.num_steps, found.steps_of_log, len(found.stretches)) == (64, 375, 4)
    monkeypatch.setattr(sampling, "ROWS", 64)
    assert sampled(path, num_ranks=4, batch_per_rank=2)[0].num_steps == 8


def run(capsys, *words):
    """Run a command that must end well, and return what it prints."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(words)
    said = capsys.readouterr()
    assert not stopped.value.code, said.err
    return said.out


def test_the_screen_ends_in_lines_that_run(tmp_path, capsys, monkeypatch):
    pq.write_table(pa.table({"tokens": long_tailed(640)}), tmp_path / "log.parquet")
    monkeypatch.chdir(tmp_path)
    words = "log.parquet --ranks 8 --batch-per-rank 8 --price=2 --set gpus_per_rank=2 --html advice.html"
    said = run(capsys, "advise", *words.split())
    assert "page written to advice.html" in said
    page = (tmp_path / "advice.html").read_text()
    assert "balancer plan log.parquet" in page
    assert "<script" not in page
    commands = re.findall(r"^ +balancer (plan .*)$", said, re.MULTILINE)
    assert commands
    assert "--price" not in "".join(commands)
    assert "--html" not in "".join(commands)
    for each in commands:
        assert "plan written" in run(capsys, *each.split(), "--overwrite")
    assert "MB as ids of 8 bytes" in said


def test_lines_leave_out_what_a_remedy_replaces(advice):
    by_tokens = ways(advice)["step_tokens"]
    first = next(iter(to_paste(by_tokens, ["log.parquet", "--batch-per-rank", "8", "--ranks=8"])))
    tokens = by_tokens.options["step_tokens"]
    assert first == f"balancer plan log.parquet --ranks=8 --set step_tokens={tokens} --out step_tokens.parquet"
    assert (
        next(iter(to_paste(by_tokens)))
        == f'balancer.plan_log(log, ..., batch_per_rank=None, step_tokens={tokens}, out="step_tokens.parquet")'
    )
    assert json.loads(json.dumps(advice.summary()))["worth_it"] == [each.name for each in advice.chosen]
    assert "\n".join(lines_of(advice)) == str(advice)


def test_a_sample_has_the_standard_error_that_the_jackknife_has():
    rng = np.random.default_rng(0)
    even = rng.integers(500, 900, 60)
    before, after = even + rng.integers(0, 900, 60), even + rng.integers(0, 50, 60)
    rows = [{"step": i, "phase": "all", "ranks": 1, "makespan": 1, "before": b, "after": a, "even": e}
            for i, (b, a, e) in enumerate(np.column_stack([before, after, even]).tolist())]  # fmt: skip
    found = Tried(table_of(rows), [])

    def jackknife(taken):
        ratios = np.array([np.delete(even, i).sum() / np.delete(taken, i).sum() for i in range(60)])
        return float(np.sqrt(59 / 60 * np.square(ratios - ratios.mean()).sum()))

    wanted = (jackknife(before), jackknife(after))
    for name, error in zip(("before", "after"), wanted, strict=True):
        assert found.waiting_error(None, name) == pytest.approx(error, rel=0.05)
        assert found.waiting_error(120, name) == pytest.approx(error * 0.5**0.5, rel=0.05)
        assert found.waiting_error(60, name) == 0.0


def test_a_sampled_log_says_how_sure_it_is(tmp_path):
    lengths = np.random.default_rng(0).lognormal(6, 1, 40_000).astype(np.int64) + 1
    pq.write_table(pa.table({"tokens": lengths}), tmp_path / "log.parquet")
    advice = balancer.advise(tmp_path / "log.parquet", num_ranks=8, batch_per_rank=8)
    home = np.arange(len(lengths) // 64 * 64).reshape(-1, 8, 8)
    loads = lengths[home].sum(axis=2)
    waiting = 1 - loads.sum() / (8 * loads.max(axis=1).sum())
    assert 0 < abs(advice.today.waiting - waiting) < 4 * advice.today.waiting_error
    assert f"± {100 * advice.today.waiting_error:.1f}" in str(advice)
    assert "± is one standard error" in str(advice)


def test_caps_are_kept_by_what_is_tried_and_pasted():
    lengths = ([300] * 103 + [9000]) * 3  # one long sample a step

    def advice_with(cap):
        cut = balancer.MicroBatches(cap, over_long="own")
        return balancer.advise({"tokens": lengths}, num_ranks=8, batch_per_rank=13, cut=cut)

    found = advice_with(2000)
    each = ways(found)
    assert each["sequence_groups"].options["cut.tokens_per_rank"] == "2000"
    assert int(each["context_shards"].options["cut.pack_tokens"]) <= 8 * 2000
    assert "Cut as asked, no plan within a step" in str(found)
    assert "one sample alone" not in str(found)
    short = ways(advice_with(1000))
    assert short["context_shards"].why_not == "the longest sample does not fit 8 ranks of 1,000 tokens"


def test_a_log_of_few_steps_is_taken_whole_and_so_is_a_text(tmp_path):
    path = str(tmp_path / "log.csv")
    pa_csv.write_csv(pa.table({"tokens": long_tailed(100 * 8 + 3)}), path)
    found, _, _ = sampled(path, num_ranks=4, batch_per_rank=2)
    assert (found.num_steps, found.steps_of_log) == (100, 100)
    advised = balancer.advise(path, num_ranks=4, batch_per_rank=2)
    assert "±" not in str(advised)
    assert advised.sample.in_words(advised.within.steps) == "all 100 full steps"
    lengths = {"tokens": long_tailed(100 * 8 + 3)}
    found, _, _ = sampled(lengths, num_ranks=4, batch_per_rank=2)
    assert (found.num_steps, found.steps_of_log) == (100, 100)


def test_lengths_of_nothing_are_named():
    assert "All lengths are 0" in str(balancer.advise({"tokens": [0] * 640}, num_ranks=8, batch_per_rank=8))
    assert "All lengths" not in str(balancer.advise({"tokens": [5] * 640}, num_ranks=8, batch_per_rank=8))
