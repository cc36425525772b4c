"""Plans of what another plan left: the rest of every epoch in its order, each sample once, on other ranks."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import balancer
from balancer.cli.main import main
from balancer.compat import PlannedBatchSampler
from balancer.io.log import open_log
from balancer.io.plan_reader import open_plan
from balancer.offline.check import check_run
from balancer.offline.claims import Claims
from balancer.offline.load import checked_steps
from balancer.offline.run import plan_run
from balancer.offline.step_table import summary

LENGTHS = np.random.default_rng(0).integers(1, 90, 50)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(pa.table({"tokens": LENGTHS}), path)
    return path


def planned(log, out, ranks, *arguments, batch=4, exit_code=0):
    shape = f"--ranks {ranks} --batch-per-rank {batch} --length tokens --overwrite --out {out}".split()
    with pytest.raises(SystemExit, match=str(exit_code)):
        main(["plan", str(log), *shape, *map(str, arguments)])
    return out


def test_a_report_names_the_row_of_the_log_that_planning_named(tmp_path):
    lengths = np.append(np.full(30, 10), 500)
    pq.write_table(pa.table({"tokens": lengths}), tmp_path / "log.parquet")
    first = planned(tmp_path / "log.parquet", tmp_path / "first.parquet", 2)
    rest = planned(tmp_path / "log.parquet", tmp_path / "rest.parquet", 3, "--continue", first, "--at-step", 2, batch=5)
    phase = summary(check_run(str(rest)).steps)["phases"]["all"]
    assert (phase["capping_sample"]["row"], phase["capping_sample"]["length"]) == (30, 500)


def rows_by_step(plan):
    table = pq.read_table(plan).to_pandas()
    steps = open_plan(plan).description["steps"]
    return [sorted(table[table.step == step]["sample"]) for step in range(steps)]


def per_epoch(plans):
    """The rows of each epoch, of steps of one plan after the other: (plan, first step, last)."""
    found = {}
    for plan, start, stop in plans:
        order = Claims(open_plan(plan)).order
        for step, rows in enumerate(rows_by_step(plan)):
            if start <= step < stop:
                found.setdefault(order.place(step)[0], []).extend(rows)
    return found


@pytest.mark.parametrize(
    ("shuffle", "epochs", "at"), [([], 1, 0), ([], 1, 6), ([], 2, 7), (["--set", "shuffle=5"], 2, 9)]
)
def test_every_sample_of_every_epoch_is_planned_once(log, tmp_path, shuffle, epochs, at):
    first = planned(log, tmp_path / "first.parquet", 2, *shuffle, "--set", f"epochs={epochs}")
    second = planned(log, tmp_path / "second.parquet", 3, "--continue", first, "--at-step", at)
    then = min(2, open_plan(second).description["steps"] - 1)
    third = planned(log, tmp_path / "third.parquet", 1, "--continue", second, "--at-step", then, batch=5)
    every = {epoch: list(range(50)) for epoch in range(epochs)}
    for plans in [(first, 0, at), (second, 0, 99)], [(first, 0, at), (second, 0, then), (third, 0, 99)]:
        assert {epoch: sorted(rows) for epoch, rows in per_epoch(plans).items()} == every
    for plan in second, third:
        assert len(list(checked_steps(plan))) == open_plan(plan).description["steps"]  # replayed against the log


def test_the_order_goes_on_where_it_was(log, tmp_path):
    """A plan for as many ranks, at a step, is that plan's own rest."""
    first = planned(log, tmp_path / "first.parquet", 2, "--set", "epochs=2", "--set", "shuffle=5")
    second = planned(log, tmp_path / "second.parquet", 2, "--continue", first, "--at-step", 3)
    assert rows_by_step(second) == rows_by_step(first)[3:]
    assert open_plan(second).description["continues"] == {"epoch": 0, "sample": 24}


@pytest.mark.parametrize(("shuffle", "drop_last"), [(None, True), (5, False)])
def test_a_folder_of_parts_holds_the_same(log, tmp_path, shuffle, drop_last):
    plan = planned(log, tmp_path / "plan.parquet", 2, *(("--set", "drop_last=true") if drop_last else ()))
    settings = replace(
        Claims(open_plan(plan)).settings, steps_per_part=2, epochs=3, shuffle=shuffle, first_epoch=1, first_sample=19
    )
    outs = [f"{tmp_path}/{name}" for name in ("whole.parquet", "parts/")]
    for out in outs:
        plan_run(open_log(log), settings, out, who=1)
    found = [open_plan(out) for out in outs]
    steps = [[(number, run["all"].sample.tolist()) for number, run in one.whole_steps()] for one in found]
    assert steps[0] == steps[1]
    assert len({one.description["digest"] for one in found}) == 1
    assert len(steps[0]) == (3 + 2 * 6 if drop_last else 4 + 2 * 7)
    assert Claims(found[0]).order.steps_in(0) == (3 if drop_last else 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--at-step", 1], "need each other"),
        (["--continue", "PLAN", "--at-step", -1], "--at-step must be within 0..6, got -1: the plan has 7"),
        (["--continue", "PLAN", "--at-step", 7], "got 7: nothing is left behind the last"),
        (["--continue", "PLAN", "--at-step", 1, "--set", "shuffle=3"], "shuffle cannot be combined with --continue"),
        (["--continue", "SAVED", "--at-step", 0], "was saved by itself"),
        (["--continue", "OTHER", "--at-step", 0], "was not made from"),
    ],
)
def test_what_cannot_go_on_is_refused(log, tmp_path, arguments, said, capsys):
    plans = {"PLAN": planned(log, tmp_path / "plan.parquet", 2), "SAVED": tmp_path / "saved.parquet"}
    balancer.balance(LENGTHS, 2).save(plans["SAVED"])
    (tmp_path / "other.csv").write_text("tokens\n3\n4\n")
    plans["OTHER"] = planned(tmp_path / "other.csv", tmp_path / "other.parquet", 2)
    planned(log, tmp_path / "x.parquet", 3, *(plans.get(word, word) for word in arguments), exit_code=2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.parquet").exists()


def test_a_state_of_other_ranks_goes_on_in_the_plan_of_what_is_left(log, tmp_path):

    def samplers(plan, ranks):
        return [PlannedBatchSampler(plan, rank) for rank in range(ranks)]

    first = planned(log, tmp_path / "first.parquet", 2, "--set", "epochs=2", "--set", "shuffle=5")
    second = planned(log, tmp_path / "second.parquet", 3, "--continue", first, "--at-step", 9)
    old, seen = samplers(first, 2), []
    for sampler in old:
        sampler.set_epoch(1)
        running = iter(sampler)
        seen += next(running) + next(running)
    state = old[1].state_dict()
    assert (state["epoch"], state["samples"]) == (1, 16)
    for loads in (True, False):
        rest = []
        for sampler in samplers(second, 3):
            if loads:
                sampler.load_state_dict(state)
            sampler.set_epoch(1)
            rest += [row for batch in sampler for row in batch]
        assert sorted(seen + rest) == list(range(50))
    with pytest.raises(
        ValueError, match=r"epoch must be within 1\.\.1, as the plan goes on.*got 2.*plan the whole log"
    ):
        samplers(second, 3)[0].set_epoch(2)
    whole = planned(
        log, tmp_path / "whole.parquet", 1, "--set", "epochs=2", "--set", "shuffle=5", batch=16
    )  # 16, 32, 48
    rest = PlannedBatchSampler(whole, 0)
    rest.load_state_dict(state)
    assert sorted(seen + [row for batch in rest for row in batch]) == list(range(50))
    odd = planned(log, tmp_path / "odd.parquet", 3, "--set", "epochs=2", "--set", "shuffle=5")
    with pytest.raises(ValueError, match=r"behind sample 16 of epoch 1.*--continue PLAN --at-step S --ranks 3"):
        PlannedBatchSampler(odd, 0).load_state_dict(state)
    for other in ([], ["--set", "shuffle=6"]):
        plan = planned(log, tmp_path / "other.parquet", 2, "--set", "epochs=2", *other)
        with pytest.raises(ValueError, match="its shuffle is 5, here it is"):
            PlannedBatchSampler(plan, 0).load_state_dict(state)
    ended = samplers(first, 2)[0]
    ended.set_epoch(1)
    list(ended)
    over = PlannedBatchSampler(odd, 0)
    over.load_state_dict(ended.state_dict(batches=len(ended)))
    assert list(over) == []
    over.set_epoch(0)
    assert len(list(over)) == 5
