"""Logs planned with samples that run early or late: command line, step files, plan files, and who reads them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import balancer
from balancer.cli.main import main
from balancer.compat import PlannedBatchSampler
from balancer.errors import PlanError
from balancer.io.plan_reader import open_plan
from balancer.offline import across
from balancer.offline.load import checked_steps

RANKS, BATCH, ROWS = 4, 5, 207


def put(*keys: str) -> list[str]:
    """Return what sets keys on the command line."""
    return [word for key in keys for word in ("--set", key)]


COST = "quadratic:a=300,b=1"
GIVEN = ["--ranks", str(RANKS), "--length", "tokens", "--cost", COST]
BY_COUNT = [*GIVEN, "--batch-per-rank", str(BATCH)]
BY_TOKENS = [*GIVEN, *put("step_tokens=6K")]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    lengths = np.minimum(rng.lognormal(5, 1.3, ROWS), 2500).astype(np.int64) + 1
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"tokens": lengths, "stage": np.arange(ROWS) // 75, "prompt": np.arange(ROWS) // 2}), path)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command; what it prints, and where it fails what it says."""

    def command(*words: object, ok: bool = True) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        assert (not stopped.value.code) is ok, printed.out + printed.err
        return printed.out if ok else " ".join(printed.err.split())

    return command


def rows_of(path: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names if name != "phase"}


@pytest.mark.parametrize(
    "how",
    [
        [*BY_COUNT, *put("deferral.window=2")],
        [*BY_TOKENS, *put("deferral.window=2")],
        BY_TOKENS,
        [*BY_COUNT, *put("deferral.window=[0,2]", "deferral.counts=any")],
        [*BY_COUNT, *put("deferral.window=2", "deferral.stage=stage")],
        [*BY_COUNT, *put("deferral.window=3", "drop_last=true")],
    ],
)
def test_planned_and_checked(run: Callable[..., str], log: Path, tmp_path: Path, how: list[str]) -> None:
    out = tmp_path / "plan.parquet"
    told = json.loads(run("plan", log, *how, "--out", out, "--json"))
    again = json.loads(run("report", out, "--json"))
    assert told["phases"] == again["phases"]
    assert told["across_steps"] == again["across_steps"]
    rows, columns = rows_of(out), pq.read_table(log)
    keys = dict(word.split("=", 1) for word in how if "=" in word)
    moved = rows["step"] - rows["nominal_step"]
    window = json.loads(keys.get("deferral.window", "0"))
    early, late = (window, window) if isinstance(window, int) else window
    assert -early <= moved.min()
    assert moved.max() <= late
    assert len(np.unique(rows["sample"])) == len(rows["sample"]) == (200 if "drop_last" in keys else ROWS)
    order = np.argsort(rows["sample"])
    nominal, step = rows["nominal_step"][order], rows["step"][order]
    if "step_tokens" in keys:
        tokens = np.bincount(nominal, columns["tokens"].to_numpy())
        assert tokens.max() <= 6000
        assert (np.bincount(step, columns["tokens"].to_numpy()) <= 6300).all()
    else:
        assert nominal.tolist() == (np.arange(len(nominal)) // (RANKS * BATCH)).tolist()
    if not {"step_tokens", "deferral.counts"} & set(keys):
        assert np.bincount(step).tolist() == np.bincount(nominal).tolist()
    if "deferral.stage" in keys:
        stage = columns["stage"].to_numpy()
        last = [nominal[stage == k].max() for k in range(3)]
        first = [nominal[stage == k].min() for k in range(3)]
        assert all(first[k] <= t <= last[k] for t, k in zip(step.tolist(), stage.tolist(), strict=True))


def test_it_says_what_it_does(run: Callable[..., str], log: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.parquet"
    text = " ".join(run("plan", log, *BY_TOKENS, *put("deferral.window=2"), "--out", out).split())
    assert "steps of 6,000 tokens, up to 2 early and 2 steps late" in text
    for part in ("across steps: ", "without deferral", "(proven)", "to training: ", "exactly 1 where by a constant"):
        assert part in text
    found = json.loads(run("plan", log, *BY_TOKENS, *put("deferral.window=2"), "--json"))
    across = found["across_steps"]
    assert across["even_share"] <= across["lower_bound"] <= across["floor"]
    assert found["deferral"]["window"] == 2
    in_memory = balancer.defer(pq.read_table(log)["tokens"].to_numpy(), RANKS, step_tokens=6000, window=2, cost=COST)
    assert (across["floor"], across["lower_bound"]) == (in_memory.floor, in_memory.lower_bound)
    assert across["long_share"] == list(in_memory.effects.long_share)
    assert across["sample_mean_weight"] == in_memory.effects.sample_mean_weight


def test_nothing_deferred_is_todays_plan(run: Callable[..., str], log: Path, tmp_path: Path) -> None:
    plain, zero = tmp_path / "plain.parquet", tmp_path / "zero.parquet"
    run("plan", log, *BY_COUNT, "--out", plain)
    run("plan", log, *BY_COUNT, *put("deferral.window=0"), "--out", zero)
    assert plain.read_bytes() == zero.read_bytes()


def test_step_file_and_python(run: Callable[..., str], log: Path, tmp_path: Path) -> None:
    file = tmp_path / "step.toml"
    file.write_text(
        f'ranks = {RANKS}\nstep_tokens = 6000\n[[phase]]\nlength = "tokens"\ncost = "{COST}"\n'
        "[deferral]\nwindow = [1, 2]\ntokens_within = 0.1\n"
    )
    by_file, by_options, by_python = (tmp_path / f"{name}.parquet" for name in "abc")
    run("plan", log, "--step", file, "--out", by_file)
    run("plan", log, *BY_TOKENS, *put("deferral.window=[1,2]", "deferral.tokens_within=10%"), "--out", by_options)
    assert by_file.read_bytes() == by_options.read_bytes()
    found = balancer.plan_log(log, step=file, out=by_python)
    assert by_python.read_bytes() == by_file.read_bytes()
    run("report", by_file, "--step", file)
    assert found.summary()["across_steps"]["steps"] == found.summary()["steps"]
    keywords = balancer.plan_log(log, num_ranks=RANKS, step_tokens=6000, window=(1, 2), tokens_within="10%",
                                 length="tokens", cost=COST)  # fmt: skip
    assert keywords.summary() == found.summary()


def test_parts_resumed_and_epochs(run: Callable[..., str], log: Path, tmp_path: Path) -> None:
    folder, file = tmp_path / "plan", tmp_path / "plan.parquet"
    how = [*BY_TOKENS, *put("deferral.window=2", "epochs=2", "shuffle=7")]
    run("plan", log, *how, "--out", f"{folder}/")
    run("plan", log, *how, "--out", f"{folder}/")
    run("plan", log, *how, "--out", file)
    assert open_plan(folder).description == open_plan(file).description
    sizes = open_plan(file).description["step_samples"]
    assert [sum(each) for each in sizes] == [ROWS, ROWS]
    assert json.loads(run("report", folder, "--json"))["steps"] == sum(map(len, sizes))


def test_ranks_read_it(run: Callable[..., str], log: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.parquet"
    run("plan", log, *BY_TOKENS, *put("deferral.window=2", "epochs=2", "shuffle=7"), "--out", out)
    rows = rows_of(out)
    base = 0
    for epoch in range(2):
        samplers = [PlannedBatchSampler(out, rank) for rank in range(RANKS)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        steps = list(zip(*samplers, strict=True))
        assert sorted(row for step in steps for batch in step for row in batch) == list(range(ROWS))
        for t, step in enumerate(steps):
            assert sorted(row for batch in step for row in batch) == sorted(
                rows["sample"][rows["step"] == base + t].tolist()
            )
        base += len(steps)
    first = PlannedBatchSampler(out, 1)
    batches = iter(first)
    whole = [next(batches) for _ in range(3)]
    state = first.state_dict()
    second = PlannedBatchSampler(out, 1)
    second.load_state_dict(state)
    assert whole + list(second) == list(PlannedBatchSampler(out, 1))


def test_simulate_knows_it(run: Callable[..., str], log: Path) -> None:
    simulated = ["--cluster", "h100", *put("gpus_per_rank=1"), "--model", "qwen2-7b", "--json"]
    assert json.loads(run("simulate", log, *BY_TOKENS, *put("deferral.window=2"), *simulated))["steps"] > 3
    run("simulate", log, *BY_TOKENS, *put("deferral.window=2"), *simulated, "--steps", "40")


REFUSED = {
    "batch_per_rank and step_tokens": [*BY_COUNT, *put("step_tokens=6K")],
    "batch_per_rank is missing": GIVEN,
    "counts limits what deferral may do": [*BY_COUNT, *put("deferral.counts=exact")],
    "leaves every sample in its nominal step": [*BY_COUNT, *put("deferral.window=[0,2]")],
    "deferral.window must be a whole number >= 0, or two of them: [early, late]": [
        *BY_COUNT,
        *put("deferral.window=-1"),
    ],
    "keep_together cannot be combined with ": [*BY_COUNT, *put("deferral.window=2", "phase.all.keep_together=prompt")],
    "padded": [*BY_COUNT[:-4], "--cost", "padded", "--batch-per-rank", "5", *put("deferral.window=2")],
    "rank_speeds cannot be combined with ": [*BY_COUNT, *put("deferral.window=2", "phase.all.rank_speeds=[1,1,1,2]")],
    "max_tokens_per_rank": [*BY_TOKENS, *put("deferral.window=2", "phase.all.max_tokens_per_rank=2000")],
    "leave --jobs": [*BY_TOKENS, *put("deferral.window=2"), "--jobs", "2"],
    "no column 'x'": [*BY_TOKENS, *put("deferral.window=2", "deferral.stage=x")],
    "step_tokens must be a whole number >= 1, such as": [*GIVEN, *put("step_tokens=4Q")],
}


@pytest.mark.parametrize("told", REFUSED)
def test_refused_in_a_line(run: Callable[..., str], log: Path, told: str) -> None:
    text = run("plan", log, *REFUSED[told], ok=False)
    assert told in text, text


@pytest.mark.parametrize("column", ["step", "nominal_step", "sample"])
def test_changed_rows_are_found(run: Callable[..., str], log: Path, tmp_path: Path, column: str) -> None:
    out, changed = tmp_path / "plan.parquet", tmp_path / "changed.parquet"
    run("plan", log, *BY_TOKENS, *put("deferral.window=1"), "--out", out)
    table = pq.read_table(out)
    values = table[column].to_numpy().copy()
    where = np.flatnonzero(table["step"].to_numpy() == 3)[-1]
    values[where:] += 1 if column == "step" else 0
    values[where] += {"step": 0, "nominal_step": 1, "sample": -5}[column]
    at = table.column_names.index(column)
    table = table.set_column(at, table.field(at), pa.array(values))
    pq.write_table(table, changed)
    with pytest.raises(PlanError):
        list(checked_steps(changed, log))


def test_continue_is_refused(run: Callable[..., str], log: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.parquet"
    run("plan", log, *BY_COUNT, *put("deferral.window=2"), "--out", out)
    text = run("plan", log, *BY_COUNT, "--continue", out, "--at-step", "3", ok=False)
    assert "its samples run early or late" in text


PHASE_NAMES = "vision", "llm"
PHASES = [*put("phase.vision.length=images", "phase.llm.length=tokens"), "--ranks", str(RANKS)]


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    rng = np.random.default_rng(2)
    images = [np.minimum(rng.lognormal(5, 1.2, rng.integers(0, 5)), 4000).astype(int).tolist() for _ in range(120)]
    tokens = np.minimum(rng.lognormal(5, 1.3, 120), 2500).astype(np.int64) + 1
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.table({"tokens": tokens, "images": images, "prompt": np.arange(120) // 2}), path)
    return path


@pytest.mark.parametrize(
    "how",
    [
        [],
        put("phase.vision.cost=flops:qwen2-vl-vit", "phase.llm.cost=flops:qwen2-7b"),
        put("phase.vision.max_tokens_per_rank=9000"),
    ],
)
def test_several_phases(run: Callable[..., str], pages: Path, tmp_path: Path, how: list[str]) -> None:
    out = tmp_path / "plan.parquet"
    asked = [*PHASES, *how, "--batch-per-rank", "6"]
    told = json.loads(run("plan", pages, *asked, *put("deferral.window=2"), "--out", out, "--json"))
    assert told["across_steps"] == json.loads(run("report", out, "--json"))["across_steps"]
    plain = json.loads(run("plan", pages, *asked, *put("deferral.window=0"), "--json"))
    across = told["across_steps"]
    assert across["even_share"] <= across["lower_bound"] <= across["chosen_floor"] < across["floor"]
    before, after = (
        sum(each["phases"][name]["imbalance_ratio_after"] for name in PHASE_NAMES) for each in (plain, told)
    )
    assert after < before
    if any("flops" in word for word in how):  # in one unit
        assert told["cost"]["vision"] == "quadratic:a=313375,b=40"
        assert told["models"] == {"llm": "qwen2-7b", "vision": "qwen2-vl-vit"}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (put("phase.vision.keep_together=prompt"), "phase 'vision': keep_together cannot be combined with"),
        (put("plan.mode=joint"), "are for phases that are balanced each for itself"),
        (
            put("phase.vision.cost=flops:qwen2-vl-vit"),
            "must be in one unit to be added up, flops:MODEL of all or of none",
        ),
    ],
)
def test_several_phases_refused(run: Callable[..., str], pages: Path, how: list[str], told: str) -> None:
    text = run("plan", pages, *PHASES, *how, "--batch-per-rank", "6", *put("deferral.window=2"), ok=False)
    assert told in text, text


def test_caps_on_columns_hold_before_the_plan_does(run: Callable[..., str], log: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.parquet"
    run("plan", log, *BY_TOKENS, *put("deferral.window=3", "phase.all.caps={stage=150}"), "--out", out)
    rows, stage = rows_of(out), pq.read_table(log)["stage"].to_numpy()
    held = np.bincount(rows["step"] * RANKS + rows["rank"], stage[rows["sample"]])
    assert held.max() <= 150


def check_floors(run: Callable[..., str], log: Path, asked: list[str], folder: Path, phase: str) -> None:
    """Plan with and without deferral: no plan takes less than what its steps take at least, and deferral takes less."""
    out, plain = folder / "plan.parquet", folder / "plain.parquet"
    told = json.loads(run("plan", log, *asked, *put("deferral.window=2"), "--out", out, "--json"))
    assert told["across_steps"] == json.loads(run("report", out, "--json"))["across_steps"]
    run("plan", log, *asked, "--out", plain)
    spans = [sum(step[phase].makespan for step in checked_steps(path, log)) for path in (plain, out)]
    across = told["across_steps"]
    assert across["even_share"] <= across["lower_bound"] <= across["chosen_floor"] < across["floor"] <= spans[0]
    assert across["chosen_floor"] <= spans[1] < spans[0]


CUTS = {
    "groups under a cap": put("cut.kind=sequence_groups", "cut.degrees=[1,2]", "cut.tokens_per_rank=1500"),
    "micro_batch": put("cut.tokens=3000", "cut.sync=micro_batch"),
    "micro-batches under way": put("cut.tokens=3000", "cut.sync=pipeline", "cut.pipeline_stages=4"),
    "stages": put("cut.tokens=3000", "cut.stages={all=3}"),
    "chunks": put("cut.tokens=3000", "cut.stages={all=4}", "cut.chunks=2", "cut.allow_empty=true"),
}


@pytest.mark.parametrize("cut", CUTS)
def test_what_steps_take_at_least_holds_for_every_cut(
    run: Callable[..., str], log: Path, tmp_path: Path, cut: str
) -> None:
    check_floors(run, log, [*BY_COUNT, *CUTS[cut]], tmp_path, "all")


@pytest.mark.parametrize("how", [[*BY_COUNT, *put("drop_last=true")], BY_TOKENS])
def test_long_logs_come_in_parts(
    run: Callable[..., str], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: list[str]
) -> None:
    """No sample leaves its part, and nothing else changes: each part is the plan of its rows alone."""
    whole, out = tmp_path / "whole.parquet", tmp_path / "plan.parquet"
    told = json.loads(run("plan", log, *how, *put("deferral.window=1", "epochs=2"), "--out", whole, "--json"))
    monkeypatch.setattr(across, "_STEPS_AT_ONCE", 6)
    found = json.loads(run("plan", log, *how, *put("deferral.window=1", "epochs=2"), "--out", out, "--json"))
    assert found["across_steps"] == json.loads(run("report", out, "--json"))["across_steps"]
    assert (found["steps"], found["samples"]) == (told["steps"], told["samples"])
    for name in ("even_share", "floor"):
        assert found["across_steps"][name] == pytest.approx(told["across_steps"][name], rel=1e-3)
    assert found["across_steps"]["lower_bound"] >= told["across_steps"]["lower_bound"]
    step, nominal = (rows_of(out)[name] for name in ("step", "nominal_step"))
    of_epoch = found["steps"] // 2
    assert ((step % of_epoch) // 6 == (nominal % of_epoch) // 6).all()
    assert len(open_plan(out).description["step_samples"]) == 2
    samplers = [PlannedBatchSampler(out, rank) for rank in range(RANKS)]
    ran = sorted(row for step in zip(*samplers, strict=True) for batch in step for row in batch)
    assert ran == sorted(rows_of(out)["sample"][step < of_epoch].tolist())


def test_pipelines_whose_first_stages_are_encoders(run: Callable[..., str], pages: Path, tmp_path: Path) -> None:
    asked = [*PHASES, "--batch-per-rank", "6", *put("cut.stages={vision=1,llm=2}", "cut.tokens=9000")]
    check_floors(run, pages, asked, tmp_path, "llm")


def test_a_plan_of_which_nothing_was_trained_is_planned_for_other_ranks(
    run: Callable[..., str], log: Path, tmp_path: Path
) -> None:
    deferral = put("deferral.window=2")
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    run("plan", log, *BY_COUNT, *deferral, *put("shuffle=3"), "--out", first)
    run("plan", log, *BY_COUNT, *deferral, "--continue", first, "--at-step", 0, "--out", second)
    assert sorted(rows_of(second)["sample"]) == list(range(ROWS))
    assert open_plan(second).description["shuffle"] == 3
