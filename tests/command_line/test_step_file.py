"""A step said once, in a file: the same plans as by options, exact errors, and what every command takes of it."""

import json
from importlib import resources

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_files import description_of
from typed_words import keys, typed

import balancer
from balancer.described import keys_of, schema_of
from balancer.problem.settings import PlanSettings
from balancer.step import StepFile, read_step

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
    "phase.vision.length=patches phase.vision.outputs=image_tokens "
    "phase.llm.length=text_tokens+image_tokens phase.llm.own=text_tokens"
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
    "--length tokens home=strided drop_last=true": 'home="strided"\ndrop_last=true\n[[phase]]\nlength = "tokens"',
    "--length tokens plan.placement=rearrange plan.method=lpt": (
        '[[phase]]\nlength="tokens"\n[plan]\nplacement="rearrange"\nmethod="lpt"'
    ),
    "--length tokens plan.eps=0.05 plan.time_budget=0.001": (
        '[[phase]]\nlength="tokens"\n[plan]\neps="5%"\ntime_budget=0.001'
    ),
    "--length tokens phase.all.caps={kv=900} phase.all.keep_together=prompt": (
        '[[phase]]\nlength="tokens"\ncaps={kv=900}\nkeep_together="prompt"'
    ),
    "--length tokens phase.all.allowed_ranks=may phase.all.rank_speeds=[1,2,2,1]": (
        '[[phase]]\nlength="tokens"\nallowed_ranks="may"\nrank_speeds=[1,2,2,1]'
    ),
    "--length tokens phase.all.initial_loads=[0,50,0,9] phase.all.min_samples_per_rank=3 "
    "phase.all.max_samples_per_rank=40": (
        '[[phase]]\nlength="tokens"\ninitial_loads=[0,50,0,9]\nmin_samples_per_rank=3\nmax_samples_per_rank=40'
    ),
    "--length tokens cut.tokens=4000 cut.at_least=2 cut.multiple_of=2 cut.allow_empty=true cut.over_long=own": (
        '[[phase]]\nlength="tokens"\n[cut]\ntokens=4000\nat_least=2\nmultiple_of=2\nallow_empty=true\n'
        'over_long="own"'
    ),
    "--length tokens cut.kind=sequence_groups cut.degrees=[1,2] cut.tokens_per_rank=6000": (
        '[[phase]]\nlength="tokens"\n[cut]\nkind="sequence_groups"\ndegrees=[1,2]\ntokens_per_rank=6000'
    ),
    f"{PHASES} phase.vision.bytes_in=1176 phase.vision.bytes_out=16384 phase.llm.bytes_in=4 "
    "phase.vision.cost=quadratic:a=1000,b=1 plan.mode=joint": FILED.format(
        vision='bytes_in=1176\nbytes_out=16384\ncost="quadratic:a=1000,b=1"', llm="bytes_in=4"
    )
    + '[plan]\nmode="joint"',
    f"{PHASES} phase.vision.equal_counts=true phase.vision.every_rank_nonempty=true "
    "phase.llm.max_tokens_per_rank=20000": FILED.format(
        vision="equal_counts=true\nevery_rank_nonempty=true", llm="max_tokens_per_rank=20000"
    ),
    f"{PHASES} cut.tokens=9000 cut.stages={{vision=1,llm=2}} cut.tied=true": (
        FILED.format(vision="", llm="") + '[cut]\nkind="pipelines"\ntokens=9000\nstages={vision=1,llm=2}\ntied=true'
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
    assert command("plan", log, *typed(SHAPE), *typed(options), "--out", "a.parquet").err == ""
    assert command("plan", log, "--step", "step.toml", "--out", "b.parquet").err == ""
    assert description_of("a.parquet") == description_of("b.parquet")
    planned = balancer.plan_log(log, "step.toml", out="c.parquet")  # the same in Python
    assert description_of("c.parquet")["digest"] == description_of("a.parquet")["digest"]
    assert planned.summary()["samples"] == ROWS
    assert command("report", "a.parquet", "--step", "step.toml").code == 0


def test_options_beside_a_file_win(command, log, tmp_path):
    file_of(tmp_path, FILED.format(vision="equal_counts=true", llm="max_tokens_per_rank=20000"))
    beside = "--ranks 8 phase.vision.max_tokens_per_rank=30000 phase.llm.cost=quadratic:a=9,b=1"
    assert command("plan", log, "--step", "step.toml", *typed(beside), "--out", "a.parquet").err == ""
    options = f"{PHASES} --ranks 8 --ranks-per-node 2 --batch-per-rank 16 phase.vision.equal_counts=true "
    options += f"phase.llm.max_tokens_per_rank=20000 {beside.removeprefix('--ranks 8 ')}"
    assert command("plan", log, *typed(options), "--out", "b.parquet").err == ""
    assert description_of("a.parquet") == description_of("b.parquet")
    outcome = command("report", "a.parquet", "--step", "step.toml")
    assert (outcome.code, "was not made by step.toml: topology, phases differ" in outcome.err) == (1, True)


def test_an_empty_value_leaves_out_what_a_file_says(command, log, tmp_path):
    file_of(tmp_path, FILED.format(vision="equal_counts=true", llm="max_tokens_per_rank=5") + "[cut]\ntokens=9000")
    beside = "phase.llm.max_tokens_per_rank= phase.vision.equal_counts= cut="
    assert command("plan", log, "--step", "step.toml", *typed(beside), "--out", "a.parquet").err == ""
    assert command("plan", log, *typed(SHAPE), *typed(PHASES), "--out", "b.parquet").err == ""
    assert description_of("a.parquet") == description_of("b.parquet")
    assert command("plan", log, "--step", "step.toml", *keys("ranks=")).err.endswith(
        "ranks is missing: Data-parallel ranks.\n"
    )


@pytest.mark.parametrize(
    ("beside", "told"),
    [
        ("phase.x.cost=padded", "--set phase.x.cost: there is no phase 'x'; phases are vision, llm"),
        ("--length tokens", "--length is for a step of one phase; say of which: --set phase.vision.length=... or "),
        ("--cost padded", "--cost is for a step of one phase; say of which: --set phase.vision.cost=... or "),
    ],
)
def test_what_cannot_be_beside_a_file(beside, told, command, log, tmp_path):
    file_of(tmp_path, FILED.format(vision="", llm=""))
    outcome = command("plan", log, "--step", "step.toml", *typed(beside))
    assert (outcome.code, outcome.out) == (2, "")
    assert told in outcome.err
    assert outcome.err.count("\n") == 1


def test_other_commands_take_the_file(command, log, tmp_path):
    text = 'cluster = "h100"\n' + FILED.format(vision='model="internvit-6b"\npieces=1024', llm='model="qwen2-7b"')
    file_of(tmp_path, text)
    simulated = json.loads(command("simulate", log, "--step", "step.toml", "--steps", 1, "--json").out)
    assert set(simulated["strategies"]) >= {"as_sampled", "orchestrated"}
    found = command("configure", log, "--step", "step.toml", "--gpus", 4, "--mode", "before", "--layouts", 1)
    assert found.code == 0, found.err


WRONG = {
    "rankz = 4": "step.toml: rankz: there is no such key (did you mean 'ranks'?)",
    'ranks = "four"': "step.toml: ranks must be a whole number >= 1, got 'four'",
    'drop_last = "no"': "step.toml: drop_last must be true or false, got 'no'",
    "home = 3": "step.toml: home must be one of contiguous, strided, got 3",
    'step_tokens = "4X"': "step.toml: step_tokens must be a whole number >= 1, such as 4194304 or \"4M\", got '4X'",
    "cluster = 5": "step.toml: cluster must be text, got 5",
    "ranks = 4\nranks = 5": "step.toml: is no TOML: Cannot overwrite a value",
    "eps = 0.1": "step.toml: eps: there is no such key, but in plan",
    "[plan]\neps = 5": "step.toml: plan.eps must be a share < 1 of the makespan (for 5 percent write 5%), got 5",
    '[plan]\nplacement = "near"': ("step.toml: plan.placement must be one of relocate, rearrange, any, got 'near'"),
    "[cut]\ntokens = 9\ndegrees = [1, 2]": ("step.toml: cut: no kind of cut has both tokens and degrees"),
    '[cut]\nkind = "sequence_groups"\ntokens = 9': (
        "step.toml: cut.tokens: there is no such key here, but where cut.kind is micro_batches or pipelines"
    ),
    "[cut]\ntokens = 9\n[cut]\ndegrees = [1, 2]": "step.toml: is no TOML: Cannot declare ('cut',) twice",
    '[cut]\nkind = "slices"\ntokens = 9': "step.toml: cut.kind must be one of whole_shares, micro_batches, pipelines,",
    "[micro_batches]\ntokens = 9": "step.toml: micro_batches: there is no such key; known here are ranks,",
    "[cut]\nstages = {llm = 2}": "step.toml: cut.tokens is missing: Elements of a micro-batch at most.",
    '[phase]\nlength = "tokens"': (
        "step.toml: phase must be tables of their own: write [[phase]], with two brackets, before each"
    ),
    '[[phase]]\nname = "a"\nlength = "tokens"\n[[phase]]\nname = "a"\nlength = "kv"': (
        "step.toml: phase 'a' stands there twice; name each phase once"
    ),
    '[[phase]]\nlength = "tokens"\n[[phase]]\nname = "b"\nlength = "kv"': (
        "step.toml: phase 1 of 2 has no name; only a single one needs none"
    ),
    '[[phase]]\nlength = "tokens"\ncost = "cubic"': "step.toml: phase.all.cost: unknown cost 'cubic'; known",
    '[[phase]]\nlength = "tokens"\ncaps = {kv = 0}': (
        "step.toml: phase.all.caps must map columns to whole numbers >= 1; 'kv' has 0, got {'kv': 0}"
    ),
    '[[phase]]\nlength = "token"': "log.parquet: no column 'token' (did you mean 'tokens'?); columns there are:",
    '[[phase]]\nlength = "tokens"\nrank_speeds = [1, 2, 3]': (
        "step.toml: rank_speeds must have a number for each of 4 ranks, got 3"
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_told_in_a_line(text, command, log, tmp_path):
    tables = text.startswith(("[", "rankz", "eps", "drop_last", "home", "cluster"))
    file_of(tmp_path, text, TOP if tables else "batch_per_rank = 16\n")
    outcome = command("plan", log, "--step", "step.toml", *([] if "[[phase]]" in text else ["--length", "tokens"]))
    assert outcome.code == 2
    assert WRONG[text] in outcome.err
    assert outcome.err.count("\n") <= 2


def test_a_missing_file(command, log):
    assert command("plan", log, "--step", "nosuch.toml").err == "balancer: nosuch.toml: no such file\n"


def test_a_step_is_written_for_a_log_and_can_be_used(command, log, tmp_path):
    outcome = command("step", log)
    assert outcome.code == 0
    (tmp_path / "step.toml").write_text(outcome.out)
    # Several columns may be the length: the likely one is a comment, and no plan is made of a guess.
    assert "which one is the length is open" in command("plan", log, "--step", "step.toml").err
    (tmp_path / "step.toml").write_text(outcome.out.replace("# length = ", "length = "))
    step = read_step("step.toml")
    assert step.phase[0].length == "tokens+image_tokens+text_tokens"
    assert command("plan", log, "--step", "step.toml").code == 0


def test_the_schema_is_that_of_the_declaration(command):
    text = resources.files("balancer").joinpath("step.schema.json").read_text()
    assert command("step", "--schema").out == text
    shipped = json.loads(text)
    assert shipped == schema_of(StepFile)
    assert set(shipped["properties"]) == {each.table or each.name for each in keys_of(StepFile)}


def test_decimals_stay_what_was_written(tmp_path):
    (tmp_path / "step.toml").write_text("[plan]\neps = 0.1\ntime_budget = 0.02\n")
    step = read_step(tmp_path / "step.toml")
    assert str(step.plan.eps) == "0.1"
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
        with pytest.raises(ValueError, match="eps must be a share < 1 of the makespan"):
            balancer.balance([5, 3, 9, 1], 2, eps=eps)
    assert PlanSettings(eps="1%") == PlanSettings(eps=0.01)
    assert PlanSettings.from_json(PlanSettings(eps="1%").to_json()) == PlanSettings(eps=0.01)


@pytest.mark.parametrize("text", ["[" * 9000, "9" * 9000, "1e999999999", "1e-999999999", "{a=" * 3000])
def test_hostile_values_end_at_once(text, command, tmp_path):
    (tmp_path / "log.csv").write_text("tokens\n1\n2\n3\n4\n")
    outcome = command("plan", "log.csv", "--ranks", 2, "--batch-per-rank", 2, *keys(f"plan.eps={text}"))
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "plan.eps" in outcome.err


def test_all_keys_are_listed(command):
    listed = command("step", "--keys").words
    assert all(each.path in listed for each in keys_of(StepFile))
