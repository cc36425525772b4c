"""What a person reads first is so: which steps are judged, what is assumed, what is replaced, and what to type next."""

import io
import json
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_files import write_csv
from typed_words import keys

import balancer
from balancer.offline.load import checked_steps
from balancer.strategies import plan_with

SHAPE = ("--ranks", 2, "--batch-per-rank", 2)
EVEN = [5, 5, 5, 5] * 3


def phase_of(outcome):
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_a_short_last_step_is_judged_apart(command, tmp_path):
    write_csv(tmp_path / "log.csv", [*EVEN, 900])
    told = phase_of(command("plan", "log.csv", *SHAPE, "--out", "plan.parquet", "--json"))
    phase, short = told["phases"]["all"], told["short_steps"]
    assert (phase["imbalance_ratio_before"], phase["capping_sample"], phase["steps_within_eps"]) == (1.0, None, 3)
    assert (short["steps"], short["samples"], short["phases"]["all"]["imbalance_ratio_after"]) == (1, 1, 2.0)
    words = command("report", "plan.parquet", "--html", "page.html").words
    assert "The last step is short, with 1 sample, and not in these numbers" in words
    assert "fair share" not in words
    page = Path("page.html").read_text()
    assert "step 1, the median one by what the plan saves" in page  # and not the last, in which it could save most


def test_the_row_that_caps_is_named_by_step_where_short_ones_lie_between(command, tmp_path):
    write_csv(tmp_path / "log.csv", [5, 5, 5, 5, 7, 900, 5, 5, 5])
    told = phase_of(command("plan", "log.csv", *SHAPE, *keys("epochs=2"), "--json"))
    assert told["short_steps"]["steps"] == 2
    assert [told["phases"]["all"]["capping_sample"][name] for name in ("step", "row")] == [1, 5]


def test_a_log_shorter_than_one_batch_says_so(command, tmp_path):
    write_csv(tmp_path / "log.csv", [5, 3, 9])
    words = command("plan", "log.csv", *SHAPE).words
    assert "The log holds fewer samples than one global batch (3 samples)" in words


def test_an_eps_may_be_a_percentage(command, tmp_path):
    write_csv(tmp_path / "log.csv", EVEN)
    for eps in ("1%", "0.01", "1 %"):
        assert (
            phase_of(command("plan", "log.csv", *SHAPE, *keys(f"plan.eps={eps}"), "--json"))["phases"]["all"]["eps"]
            == 0.01
        )


def test_a_plan_is_no_csv(command, tmp_path):
    write_csv(tmp_path / "log.csv", EVEN)
    outcome = command("plan", "log.csv", *SHAPE, "--out", "plan.csv")
    assert (outcome.code, Path("plan.csv").exists()) == (2, False)
    assert "plan.csv: a plan is written as Parquet, so its name must not end in .csv" in outcome.err


def test_only_the_same_request_writes_over_its_plan(command, tmp_path):
    write_csv(tmp_path / "log.csv", EVEN)
    asked = ("plan", "log.csv", *SHAPE, "--out", "plan.parquet")
    assert command(*asked).code == 0

    def content():
        return {file.name: file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()}

    before = content()
    assert command(*asked).code == 0
    assert content() == before
    outcome = command(*asked, *keys("drop_last=true"))
    assert (outcome.code, "--overwrite replaces it" in outcome.err, content() == before) == (2, True, True)
    assert "another request (drop_last is false there, and true here)" in outcome.err
    assert command(*asked, *keys("drop_last=true"), "--overwrite").code == 0
    assert content() != before


def test_a_file_that_is_no_plan_is_not_replaced(command, tmp_path):
    write_csv(tmp_path / "log.csv", EVEN)
    pq.write_table(pa.table({"mine": [1]}), "mine.parquet")
    before = Path("mine.parquet").read_bytes()
    outcome = command("plan", "log.csv", *SHAPE, "--out", "mine.parquet")
    assert (outcome.code, Path("mine.parquet").read_bytes() == before) == (2, True)
    assert "mine.parquet holds no plan that this version reads; --overwrite replaces it" in outcome.err
    assert command("plan", "log.csv", *SHAPE, "--out", "mine.parquet", "--overwrite").code == 0


def test_what_a_shell_makes_of_a_pattern(command, tmp_path):
    for name in "ab":
        write_csv(tmp_path / f"{name}.csv", EVEN)
    outcome = command("plan", "a.csv", "b.csv", *SHAPE, "--out", "plan.parquet")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("a.csv and 1 more: ")
    assert "24 samples in 6 steps" in outcome.words
    assert command("report", "plan.parquet").code == 0
    assert sum(plan.num_samples for plan in checked_steps("plan.parquet")) == 24


def test_a_log_on_standard_input(command, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"5\n3\n9\n1\n")))
    outcome = command("plan", "-", *SHAPE)
    assert (outcome.code, "4 samples in 1 step" in outcome.words) == (0, True)
    monkeypatch.setattr("sys.stdin", None)
    outcome = command("plan", "-", *SHAPE)
    assert (outcome.code, "there is no standard input" in outcome.err) == (2, True)


def test_the_command_to_paste_where_the_length_is_open(command, tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "text_tokens": [3, 4], "image_tokens": [5, 6]}), tmp_path / "log.parquet")
    outcome = command("plan", "log.parquet", *SHAPE, *keys("home=strided"))
    first, second = outcome.err.splitlines()
    assert (outcome.code, "they are: id, text_tokens, image_tokens" in first) == (2, True)
    words = shlex.split(second.partition("such as: ")[2])
    assert words[:3] == ["balancer", "plan", "log.parquet"]
    assert command(*words[1:]).code == 0


@pytest.mark.parametrize("allowed", [[[0, 1], None, [1], None], [(0, 1), None, (1,), [0, 1]]])
def test_allowed_ranks_are_lists_in_python_too(allowed):
    plan = balancer.balance([9, 5, 3, 1], 2, allowed_ranks=allowed)
    mask = [[True, True], [True, True], [False, True], [True, True]]
    assert plan.rank_of_sample[2] == 1
    assert plan.rank_of_sample.tolist() == balancer.balance([9, 5, 3, 1], 2, allowed_ranks=mask).rank_of_sample.tolist()


def test_ranks_and_ranks_a_node_have_one_name_everywhere():
    batch, phases = {"a": [5, 3, 9, 50]}, {"llm": "a"}
    nodes = balancer.Topology.uniform(4, 2)
    by_name = balancer.orchestrate(batch, phases, num_ranks=4, ranks_per_node=2)
    for same in (balancer.orchestrate(batch, phases, topology=nodes), balancer.orchestrate(batch, phases, nodes)):
        assert same.digest() == by_name.digest()
    for call in (
        lambda: balancer.orchestrate(batch, phases, topology=4),
        lambda: plan_with("orchestrated", batch, phases, topology=4),
        lambda: balancer.balance([5, 3], 2, topology=2),
    ):
        with pytest.raises(TypeError, match=r"topology must be a Topology, .*: give num_ranks and ranks_per_node for"):
            call()
    with pytest.raises(ValueError, match="leave num_ranks and ranks_per_node out"):
        balancer.orchestrate(batch, phases, num_ranks=3, topology=nodes)


SIZES = "log", "ranks", "node_sizes", "batch_per_rank", "cost", "version"


def test_every_document_says_of_what_it_is(command, tmp_path):
    write_csv(tmp_path / "log.csv", EVEN)
    asked = ("log.csv", *SHAPE, "--json")
    wanted = [["log.csv"], 2, [2], 2, {"all": "linear"}, 2]
    for words in (("plan", *asked, "--out", "plan.parquet"), ("report", "plan.parquet", "--json")):
        told = phase_of(command(*words))
        assert [told[name] for name in SIZES] == wanted, words
    told = phase_of(command("simulate", *asked, "--cluster", "h100", "--model", "qwen2-7b"))
    assert [told[name] for name in SIZES[:4]] == wanted[:4]
    assert (told["version"], list(told["cost"])) == (2, ["all"])
    assert phase_of(command("report", "plan.parquet", "--log", tmp_path / "log.csv", "--json"))["log"] == [
        str(tmp_path / "log.csv")
    ]
    balancer.balance([5, 3], 2).save("saved.parquet")
    assert [phase_of(command("report", "saved.parquet", "--json"))[name] for name in SIZES[:4]] == [[], 2, [2], None]


@pytest.mark.parametrize("name", ["plan", "step", "simulate"])
def test_a_plan_is_no_log(name, command, tmp_path):
    """Which is told before what a log would need besides."""
    write_csv(tmp_path / "log.csv", EVEN)
    assert command("plan", "log.csv", *SHAPE, "--out", "plan.parquet").code == 0
    outcome = command(name, "plan.parquet")
    told = "plan.parquet: is a plan, and no log; name the log it was made from, or see it with balancer report"
    assert (outcome.code, outcome.err.splitlines()) == (2, [f"balancer: {told}"])


@pytest.mark.parametrize(("table", "told"), [({}, "has no columns"), ({"a": []}, "holds no rows")])
def test_an_empty_table_is_told_so(table, told):
    with pytest.raises(ValueError, match=f"^the table: {told}"):
        balancer.plan_log(table, num_ranks=2, batch_per_rank=2)
