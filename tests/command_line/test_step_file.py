"""A step said once, in a file: the same plans as by options, exact errors, and what every command takes of it."""

import json
from importlib import resources

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_files import description_of

import balancer
from balancer.problem.settings import PlanSettings
from balancer.problem.step_file import read_step
from balancer.problem.step_keys import KEYS, schema

RNG = np.random.default_rng(7)
ROWS = 256
IMAGES = (RNG.integers(0, 4, ROWS) * 256).tolist()
COLUMNS = {
    "tokens": np.minimum(RNG.lognormal(5, 1, ROWS), 4000).astype(int).tolist(),
    "patches": [4 * n for n in IMAGES],
    "image_tokens": IMAGES,
    "text_tokens": RNG.integers(20, 400, ROWS).tolist(),
    "prompt": [i // 4 for i in range(ROWS)],
    "kv": RNG.integers(1, 60, ROWS).tolist(),
    "may": [sorted(RNG.choice(4, RNG.integers(2, 5), replace=False).tolist()) for _ in range(ROWS)],
}
SHAPE = "--ranks 4 --ranks-per-node 2 --batch-per-rank 16"
TOP = "ranks = 4\nranks_per_node = 2\nbatch_per_rank = 16\n"
PHASES = (
    "--phase vision=patches --outputs vision=image_tokens --phase llm=text_tokens+image_tokens --own llm=text_tokens"
)
FILED = """
[[phase]]
name = "vision"
length = "patches"
outputs = "image_tokens"
{vision}
[[phase]]
name = "llm"
length = "text_tokens+image_tokens"
own = "text_tokens"
{llm}
"""

ALIKE = {
    "--length tokens": '[[phase]]\nlength = "tokens"',
    "--length tokens --home strided --drop-last": 'home="strided"\ndrop_last=true\n[[phase]]\nlength = "tokens"',
    "--length tokens --placement rearrange --method lpt": (
        '[[phase]]\nlength="tokens"\n[plan]\nplacement="rearrange"\nmethod="lpt"'
    ),
    "--length tokens --eps 0.05 --time-budget 0.001": '[[phase]]\nlength="tokens"\n[plan]\neps="5%"\ntime_budget=0.001',
    "--length tokens --cost quadratic:a=24576,b=1": '[[phase]]\nlength="tokens"\ncost="quadratic:a=24576,b=1"',
    "--length tokens --equal-counts --max-tokens-per-rank 9000": (
        '[[phase]]\nlength="tokens"\nequal_counts=true\nmax_tokens_per_rank=9000'
    ),
    "--length tokens --cap kv=900 --keep-together prompt": (
        '[[phase]]\nlength="tokens"\ncaps={kv=900}\nkeep_together="prompt"'
    ),
    "--length tokens --allowed-ranks may --rank-speeds 1,2,2,1": (
        '[[phase]]\nlength="tokens"\nallowed_ranks="may"\nrank_speeds=[1,2,2,1]'
    ),
    "--length tokens --initial-loads 0,50,0,9 --min-samples-per-rank 3 --max-samples-per-rank 40": (
        '[[phase]]\nlength="tokens"\ninitial_loads=[0,50,0,9]\nmin_samples_per_rank=3\nmax_samples_per_rank=40'
    ),
    "--length tokens --micro-batch-tokens 4000 --sync step --micro-batches fewest": (
        '[[phase]]\nlength="tokens"\n[micro_batches]\ntokens=4000\nsync="step"\ncount="fewest"'
    ),
    "--length tokens --micro-batch-tokens 4000 --min-micro-batches 2 --micro-batches-multiple-of 2 "
    "--allow-empty-micro-batches --over-long own": (
        '[[phase]]\nlength="tokens"\n[micro_batches]\ntokens=4000\nat_least=2\nmultiple_of=2\nallow_empty=true\n'
        'over_long="own"'
    ),
    "--length tokens --group-degrees 1,2 --max-tokens-per-rank 6000": (
        '[[phase]]\nlength="tokens"\nmax_tokens_per_rank=6000\n[sequence_groups]\ndegrees=[1,2]'
    ),
    PHASES: FILED.format(vision="", llm=""),
    f"{PHASES} --bytes vision=1176,16384 --bytes llm=4 --cost vision=quadratic:a=1000,b=1 --mode joint": FILED.format(
        vision='bytes=[1176,16384]\ncost="quadratic:a=1000,b=1"', llm="bytes=4"
    )
    + '[plan]\nmode="joint"',
    f"{PHASES} --equal-counts vision --every-rank-nonempty vision --max-tokens-per-rank llm=20000": FILED.format(
        vision="equal_counts=true\nevery_rank_nonempty=true", llm="max_tokens_per_rank=20000"
    ),
    f"{PHASES} --micro-batch-tokens 9000 --encoders step": (
        FILED.format(vision="", llm="") + '[micro_batches]\ntokens=9000\nencoders="step"'
    ),
    f"{PHASES} --micro-batch-tokens 9000 --stages vision=1,llm=2 --tied": (
        FILED.format(vision="", llm="") + "[micro_batches]\ntokens=9000\n[stages]\ncounts={vision=1,llm=2}\ntied=true"
    ),
}  # fmt: skip


@pytest.fixture
def log(tmp_path, command):
    pq.write_table(pa.table(COLUMNS), tmp_path / "log.parquet")
    return "log.parquet"


def file_of(tmp_path, text, top=TOP):
    (tmp_path / "step.toml").write_text(top + text)
    return "step.toml"


@pytest.mark.parametrize("options", ALIKE)
def test_a_file_gives_the_plan_of_the_options(options, command, log, tmp_path):
    file_of(tmp_path, ALIKE[options])
    assert command("plan", log, *SHAPE.split(), *options.split(), "--out", "a.parquet").err == ""
    assert command("plan", log, "--step", "step.toml", "--out", "b.parquet").err == ""
    assert description_of("a.parquet") == description_of("b.parquet")
    planned = balancer.plan_log(log, "step.toml", out="c.parquet")  # the same in Python
    assert description_of("c.parquet")["digest"] == description_of("a.parquet")["digest"]
    assert planned.summary()["samples"] == ROWS
    assert command("report", "a.parquet", "--step", "step.toml").code == 0


def test_options_beside_a_file_win(command, log, tmp_path):
    file_of(tmp_path, FILED.format(vision="equal_counts=true", llm="max_tokens_per_rank=20000"))
    beside = "--ranks 8 --max-tokens-per-rank vision=30000 --cost llm=quadratic:a=9,b=1"
    assert command("plan", log, "--step", "step.toml", *beside.split(), "--out", "a.parquet").err == ""
    options = f"{PHASES} --ranks 8 --ranks-per-node 2 --batch-per-rank 16 --equal-counts vision "
    options += "--max-tokens-per-rank llm=20000 --max-tokens-per-rank vision=30000 --cost llm=quadratic:a=9,b=1"
    assert command("plan", log, *options.split(), "--out", "b.parquet").err == ""
    assert description_of("a.parquet") == description_of("b.parquet")
    outcome = command("report", "a.parquet", "--step", "step.toml")
    assert (outcome.code, "was not made by step.toml: topology, phases differ" in outcome.err) == (1, True)


def test_other_commands_take_the_file(command, log, tmp_path):
    text = 'cluster = "h100"\n' + FILED.format(vision='model="internvit-6b"\npieces=1024', llm='model="qwen2-7b"')
    file_of(tmp_path, text)
    simulated = json.loads(command("simulate", log, "--step", "step.toml", "--steps", 1, "--json").out)
    assert set(simulated["strategies"]) >= {"as_sampled", "orchestrated"}
    found = command("configure", log, "--step", "step.toml", "--gpus", 4, "--mode", "before", "--time-budget", 0.01)
    assert found.code == 0, found.err


WRONG = {
    "rankz = 4": "step.toml: rankz: there is no such key (did you mean 'ranks'?); known here are ranks,",
    'ranks = "four"': "step.toml: ranks must be a whole number >= 1, got 'four'",
    "ranks = 0": "step.toml: ranks must be a whole number >= 1, got 0",
    "ranks = 4\nranks = 5": "step.toml: is no TOML: Cannot overwrite a value",
    "eps = 0.1": "step.toml: eps: there is no such key, but in [plan]; known here are ranks,",
    "[plan]\neps = 5": 'step.toml: [plan] eps must be a share of 0 or more and under 1, 0.001 or "0.1%", got 5',
    '[plan]\nplacement = "near"': (
        "step.toml: [plan] placement must be one of relocate, rearrange, any, got 'near'"
    ),
    "[micro_batches]\ntokens = 9\n[sequence_groups]\ndegrees = [1, 2]": (
        "step.toml: [micro_batches] and [sequence_groups] are two cuts of one step; keep one of them"
    ),
    "[stages]\ncounts = {llm = 2}": "step.toml: [stages] needs [micro_batches], which run through them",
    '[phase]\nlength = "tokens"': "step.toml: phases are tables of their own: write [[phase]], with two brackets,",
    '[[phase]]\nname = "a"\nlength = "tokens"\n[[phase]]\nname = "a"\nlength = "kv"': (
        "step.toml: [[phase]] 'a' stands there twice; name each phase once"
    ),
    '[[phase]]\nlength = "tokens"\n[[phase]]\nname = "b"\nlength = "kv"': (
        "step.toml: [[phase]] 1 of 2 has no name; only a single one needs none"
    ),
    '[[phase]]\nlength = "tokens"\ncost = "cubic"': "step.toml: [[phase]] cost: ",
    '[[phase]]\nlength = "tokens"\ncaps = {kv = 0}': (
        "step.toml: [[phase]] caps must be a table of whole numbers >= 1, got {'kv': 0}"
    ),
    '[[phase]]\nlength = "token"': "log.parquet: no column 'token' (did you mean 'tokens'?); columns there are:",
    '[[phase]]\nlength = "tokens"\nrank_speeds = [1, 2, 3]': (
        "step.toml: [[phase]] rank_speeds must have a number for each of 4 ranks, got 3"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_told_in_a_line(text, command, log, tmp_path):
    tables = text.startswith(("[", "rankz", "eps"))
    file_of(tmp_path, text, TOP if tables else "batch_per_rank = 16\n")
    outcome = command("plan", log, "--step", "step.toml", *([] if "[[phase]]" in text else ["--length", "tokens"]))
    assert outcome.code == 2
    assert WRONG[text] in outcome.err
    assert outcome.err.count("\n") <= 2


def test_a_missing_file_and_the_option_that_was_step(command, log):
    assert command("plan", log, "--step", "nosuch.toml").err == "balancer: nosuch.toml: no such file\n"
    assert "the step that a page draws is --page-step 3" in command("report", "p.parquet", "--step", "3").err


def test_a_step_is_written_for_a_log_and_can_be_used(command, log, tmp_path):
    outcome = command("step", log)
    assert outcome.code == 0
    (tmp_path / "step.toml").write_text(outcome.out)
    step = read_step("step.toml")
    assert step.phases[0]["length"] == "tokens+image_tokens+text_tokens"
    assert command("plan", log, "--step", "step.toml").code == 0


def test_the_schema_is_that_of_the_declaration():
    shipped = json.loads(resources.files("balancer").joinpath("step.schema.json").read_text())
    assert shipped == schema()
    assert set(shipped["properties"]) == {*KEYS[""], *(name for name in KEYS if name)}


def test_decimals_stay_what_was_written(tmp_path):
    (tmp_path / "step.toml").write_text("[plan]\neps = 0.1\ntime_budget = 0.02\n")
    step = read_step(tmp_path / "step.toml")
    assert str(step.of("plan")["eps"]) == "0.1"
    assert step.settings().eps == 0.1


def tables():
    pandas = pytest.importorskip("pandas")
    return {"arrow": pa.table(COLUMNS), "arrays": COLUMNS, "pandas": pandas.DataFrame(COLUMNS)}


@pytest.mark.parametrize("kind", ["arrow", "arrays", "pandas", "datasets"])
def test_a_table_in_memory_is_planned_as_the_file(kind, command, log):
    if kind == "datasets":
        table = pytest.importorskip("datasets").Dataset.from_dict(COLUMNS)
    elif kind == "pandas":
        table = pytest.importorskip("pandas").DataFrame(COLUMNS)
    else:
        table = {"arrow": pa.table(COLUMNS), "arrays": COLUMNS}[kind]
    asked = {"num_ranks": 4, "ranks_per_node": 2, "batch_per_rank": 16, "length": "tokens", "keep_together": "prompt"}
    of_table, of_file = balancer.plan_log(table, **asked), balancer.plan_log(log, **asked)
    rows = of_table.to_arrow().drop_columns([]).to_pydict()
    assert rows == of_file.to_arrow().to_pydict()
    drop = {"log": None}
    assert of_table.summary() | drop == of_file.summary() | drop
    with pytest.raises(balancer.InputError, match="a table in memory has no name"):
        balancer.plan_log(table, **asked, out="plan.parquet")
    phases = {"vision": "patches", "llm": "tokens"}
    step = balancer.orchestrate(table, phases, num_ranks=4)
    assert step.digest() == balancer.orchestrate({n: COLUMNS[n] for n in phases.values()}, phases, num_ranks=4).digest()


def test_what_a_plan_of_a_log_gives(command, log, tmp_path):
    plan = balancer.plan_log(log, num_ranks=4, batch_per_rank=16, length="tokens")
    told = json.loads(command("plan", log, "--ranks", 4, "--batch-per-rank", 16, "--length", "tokens", "--json").out)
    assert {name: told[name] for name in plan.summary()} == plan.summary()
    plan.save("plan.parquet")
    assert command("report", "plan.parquet").code == 0
    assert "imbalance ratio" in plan._repr_html_()
    one = balancer.balance([5, 3, 9, 1], 2)
    assert "imbalance ratio" in one._repr_html_()
    pytest.importorskip("pandas")
    assert sorted(one.to_pandas()["rank"].tolist()) == sorted(one.rank_of_sample.tolist())
    assert len(plan.to_pandas()) == ROWS
    pytest.importorskip("matplotlib")
    plan.to_html("page.html")
    assert (tmp_path / "page.html").stat().st_size


@pytest.mark.parametrize(
    ("lengths", "got"), [((n for n in [1, 2]), "a generator"), ({"a": 1}, "a dict"), ({1, 2}, "a set")]
)
def test_lengths_of_another_kind_are_named(lengths, got):
    with pytest.raises(TypeError, match=f"lengths must be a list, an array or a CPU tensor .*, got {got}"):
        balancer.balance(lengths, 2)
    with pytest.raises(TypeError, match=r"a table must be a DataFrame, an Arrow table, .*, got a generator"):
        balancer.orchestrate((n for n in [1]), {"llm": "a"}, 2)


IN_STEPS = {"num_ranks": 2, "batch_per_rank": 2}


@pytest.mark.parametrize(
    ("table", "beside", "told"),
    [
        ({"tokens": [1, "a", 3]}, {}, "the table: column 'tokens' cannot be read"),
        ({"tokens": [1, 2, 3], "x": [1, 2]}, {}, "as many rows as each other; they have 'tokens' 3, 'x' 2"),
        ({"tokens": [2**70, 1]}, {}, "the table: column 'tokens' cannot be read"),
        ({"tokens": [1, -2, 3, 4]}, {}, "the table: column 'tokens', row 1: -2 is negative"),
        ({"tokens": [1, 2]}, {"length": "token"}, r"the table: no column 'token' \(did you mean 'tokens'\?\)"),
        ({"a_tokens": [1], "b_tokens": [2]}, {}, "say which: .*, such as length='a_tokens\\+b_tokens'"),
        ({"tokens": [1, 2]}, {"lenght": "tokens"}, r"no argument 'lenght' \(did you mean 'length'\?\)"),
        ([1, 2, 3, 4], {}, "log must be a path, paths, or a table"),
    ],
)
def test_a_table_that_cannot_be_planned_is_told_in_plain_words(table, beside, told):
    with pytest.raises((balancer.InputError, TypeError), match=told) as error:
        balancer.plan_log(table, **IN_STEPS, **beside)
    assert "seqbalancer-log" not in str(error.value)


def test_a_plan_of_a_log_prints_as_a_line():
    plan = balancer.plan_log({"tokens": [900, 100, 400, 600]}, **IN_STEPS)
    assert repr(plan) == "<LogPlan: 4 samples in 1 step on 2 ranks, imbalance all 1 -> 1>"


def test_eps_is_judged_in_python_too():
    for eps in (1, 5, 2.5, "100%"):
        with pytest.raises(ValueError, match="eps must be < 1, a share of the makespan"):
            balancer.balance([5, 3, 9, 1], 2, eps=eps)
    assert PlanSettings(eps="1%") == PlanSettings(eps=0.01)
    assert PlanSettings.from_json(PlanSettings(eps="1%").to_json()) == PlanSettings(eps=0.01)
