"""``balancer configure``, and the layouts that it writes."""

import json
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typed_words import keys, typed

from balancer import ModuleLayout, Phase, orchestrate
from balancer.cost import flops
from balancer.layout_choice import choose as room
from balancer.simulate import CLUSTERS, PhaseModel, step_time

SAME = ("seconds", "idle", "mfu", "bytes", "encoder_s", "sync_s")
PHASES = keys("phase.vision.length=patches", "phase.llm.length=tokens")
MODELS = (*keys("phase.vision.model=internvit-300m", "phase.llm.model=qwen2-7b"), "--cluster", "h200")
COSTS = keys("phase.vision.cost=flops:internvit-300m", "phase.llm.cost=flops:qwen2-7b")


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_EACH_S", 1e-4)
    monkeypatch.setattr(room, "LAST_S", 1e-4)
    rng = np.random.default_rng(0)
    columns = {"patches": rng.integers(1, 9, 32) * 256, "tokens": rng.integers(20, 2000, 32)}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def test_a_layout_is_chosen_written_and_taken(command, log, tmp_path):
    files = [tmp_path / f"{mode}.json" for mode in ("stages", "before")]
    page = tmp_path / "page.html"
    for path, steps in zip(files, ((), ("--steps", 2)), strict=True):
        asked = (
            *typed("--gpus 2 --ranks 1 --batch-per-rank 16"),
            "--mode",
            path.stem,
            "--out",
            path,
            "--layouts",
            2,
            *steps,
        )
        ran = command("configure", log, *PHASES, *MODELS, *asked, *(("--html", page) * (path.stem == "before")))
        assert "proven" in ran.out
        assert f"Assumed: 2 GPUs, {'2 steps' if steps else '1 step'} of 16 samples" in ran.out
        assert json.loads(path.read_text())["mode"] == path.stem
        told, planned = (line for line in ran.out.splitlines() if line.startswith("  balancer "))
        again = json.loads(command(*shlex.split(told)[1:], "--json").out)["layouts"][str(path)]
        assert again["layout"]["mode"] == path.stem
        assert {name: again[name] for name in SAME} == {
            name: json.loads(path.read_text())["found"][name] for name in SAME
        }
        assert f"  balancer plan {log} --ranks {again['layout']['modules']['llm']['dp']} --batch-per-rank " in planned
        assert json.loads(command(*shlex.split(planned)[1:], "--json").out)["steps"] == 2
        assert pq.read_schema(path.with_name(f"{path.stem}-plan.parquet")).names[0] == "step"
        laid_out = "(with outputs of every encoder also --ranks 2, its GPUs: all modules are planned)"
        assert (laid_out in ran.out) == (path.stem == "before" and again["layout"]["modules"]["llm"]["dp"] == 1)
    assert page.read_text().count("<svg") == 2
    replicas = json.loads(files[1].read_text())["modules"]["llm"]["dp"]
    steps = ("--ranks", replicas, "--batch-per-rank", 16 // replicas)
    compared = command("simulate", log, *PHASES, *MODELS, *steps, "--layout", files[0], "--layout", files[1], "--json")
    document = json.loads(compared.out)
    asked = (*typed("--gpus 2 --ranks 1 --batch-per-rank 16 --mode before --layouts 2 phase.vision.pieces=256 --json"),)
    chosen = json.loads(command("configure", log, *PHASES, *MODELS, *asked).out)
    models = {"vision": "internvit-300m", "llm": "qwen2-7b"}
    cost = {name: str(flops(model).cost_model()) for name, model in models.items()}
    for told, costs in ((document, cost), (chosen, cost | {"vision": "linear"})):
        assert [told[key] for key in ("version", "log", "cost", "models")] == [2, [str(log)], costs, models]
    told = document["layouts"]
    assert [each["layout"]["mode"] for each in told.values()] == ["stages", "before"]
    planned = json.loads(command("plan", log, *PHASES, *COSTS, *steps, *keys(f"layout={files[1]}"), "--json").out)
    assert planned["steps"] == 2


def test_a_plan_over_a_layouts_gpus_is_simulated_as_step_time_does(command, tmp_path):
    """And not as layouts are priced, which plans nothing."""
    rng, log, path = np.random.default_rng(1), tmp_path / "log.parquet", tmp_path / "layout.json"
    columns = {"patches": rng.integers(1, 9, 16), "tokens": rng.integers(20, 2000, 16)}
    pq.write_table(pa.table(columns), log)
    modules = {"vision": {"dp": 4}, "llm": {"tp": 2, "dp": 2}}
    path.write_text(json.dumps({"mode": "before", "modules": modules}))
    options = (log, *PHASES, *MODELS, "--ranks", 4, "--batch-per-rank", 4)
    asked = ("simulate", *options, *keys(f"layout={path}"), "--efficiency", 0.4, "--strategies")
    told = json.loads(command(*asked, "orchestrated", "--json").out)["strategies"]["orchestrated"]
    models = {name: PhaseModel.on(model, CLUSTERS["h200"].peak_flops, efficiency=0.4)
              for name, model in (("vision", "internvit-300m"), ("llm", "qwen2-7b"))}  # fmt: skip
    phases = [
        Phase(name, items, models[name].cost_model()) for name, items in (("vision", "patches"), ("llm", "tokens"))
    ]
    layouts = {name: ModuleLayout(**shape) for name, shape in modules.items()}
    step = orchestrate(columns, phases, 4, layouts=layouts, placement="relocate")
    assert told["step_s"]["mean"] == pytest.approx(step_time(step, models, CLUSTERS["h200"]).seconds)
    assert "strategy 'as_sampled' cannot be combined with layout" in command(*asked, "as_sampled").err
    behind = tmp_path / "behind.json"
    layout = {"mode": "stages", "modules": modules | {"speech": {"dp": 2}}, "generators": ["speech"]}
    behind.write_text(json.dumps(layout))
    told = command("simulate", *options, "--efficiency", 0.4, "--layout", behind).err
    assert f"{behind}: layout must be of the phases vision, llm in" in told


def test_the_first_sentence_names_the_best_of_the_other_modes(command, log, tmp_path):
    page = tmp_path / "page.html"
    command(
        "configure",
        log,
        *PHASES,
        *MODELS,
        *typed("--gpus 4 --ranks 1 --batch-per-rank 16 --layouts 2"),
        "--html",
        page,
    )
    cards = re.findall(r'<h2>(stages|before|multiplexed)</h2><p class="big">([0-9.]+) (\w+)</p>', page.read_text())
    assert len(cards) == 3
    best, second, _ = sorted((float(value) * {"s": 1000, "ms": 1}[unit], value, unit) for _, value, unit in cards)
    words = f"takes {best[1]} {best[2]} a step, where the best of another mode takes {second[1]} {second[2]}."
    assert words in page.read_text()


@pytest.mark.parametrize("mode", ["stages", "before", "multiplexed"])
def test_commands_to_go_on_with_run_as_printed(command, log, tmp_path, mode):
    """Where one module is frozen, an item is cut into pieces, and replicas do not divide the batch."""
    path, pages = (
        tmp_path / f"{mode} of mine.json",
        (*keys("phase.vision.pieces=256", "phase.vision.frozen=true"), "--steps", 2),
    )
    asked = (
        *typed("--gpus 4 --ranks 1 --batch-per-rank 15"),
        "--mode",
        mode,
        "--out",
        path,
        "--layouts",
        1,
        *pages,
    )
    ran = command("configure", log, *PHASES, *MODELS, *asked)
    again, planned = (shlex.split(line)[1:] for line in ran.out.splitlines() if line.startswith("  balancer "))
    assert (again[0], planned[0]) == ("simulate", "plan")
    assert ("phase.vision.frozen=true" in again, "phase.vision.frozen=true" in planned) == (True, mode == "stages")
    assert "phase.vision.cost=flops:internvit-300m" not in planned or mode == "stages"
    assert ("cut.over_long=own" in planned) == (mode != "multiplexed" and "micro_batch_tokens" in path.read_text())
    assert (command(*again).err, command(*planned).err) == ("", "")
    ranks, each = (int(planned[planned.index(name) + 1]) for name in ("--ranks", "--batch-per-rank"))
    assert (f"in steps of {ranks * each} samples" in ran.out) == (15 % ranks > 0)


def test_nothing_to_do_is_said(command, tmp_path):
    pq.write_table(pa.table({"patches": [0] * 16, "tokens": [0] * 16}), tmp_path / "zeros.parquet")
    ran = command(
        "configure", tmp_path / "zeros.parquet", *PHASES, *MODELS, "--gpus", 2, "--ranks", 1, "--batch-per-rank", 16
    )
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "holds nothing to do: all lengths are 0" in ran.err


def test_a_layout_of_other_phases_is_called_by_its_file(command, log, tmp_path):
    (tmp_path / "other.json").write_text(json.dumps({"modules": {"llm": {"dp": 2}}}))
    ran = command(
        "plan", log, *PHASES, *COSTS, "--ranks", 2, "--batch-per-rank", 4, *keys(f"layout={tmp_path / 'other.json'}")
    )
    assert "other.json: layout must be of the phases vision, llm in this order, got llm" in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"modules": {"llm": {"dp": 1, "dp": 2}}}', "layout.json: 'dp' stands twice in one object"),
        (
            '{"mode": "before", "micro_batches": 1000000, "modules": {"vision": {"dp": 2}, "llm": {"dp": 2}}}',
            "at most 8 micro-batches, the samples of a step",
        ),
    ],
)
def test_files_that_are_no_layout_of_this_step(command, log, tmp_path, text, message):
    path = tmp_path / "layout.json"
    path.write_text(text)
    ran = command("simulate", log, *PHASES, *MODELS, "--ranks", 2, "--batch-per-rank", 4, "--layout", path)
    assert ran.code == 2
    assert message in ran.err


def test_a_layout_that_cannot_be_written_is_refused_before_the_search(command, tmp_path):
    asked = ("--gpus", 2, "--ranks", 1, "--batch-per-rank", 16, "--out", "no/layout.json")
    ran = command("configure", tmp_path / "no.parquet", *PHASES, *MODELS, *asked)
    assert "no/layout.json: cannot write the layout: the folder" in ran.err


def test_a_layout_does_not_overwrite_the_log_or_the_page(command, log, tmp_path):
    asked = ("configure", log, *PHASES, *MODELS, "--gpus", 2, "--ranks", 1, "--batch-per-rank", 8, "--out")
    assert f"{log}: the layout would overwrite the log; choose" in command(*asked, log).err
    page = tmp_path / "page.html"
    assert f"{page}: the layout would overwrite the page" in command(*asked, page, "--html", page).err


def test_any_stands_alone(command, log):
    ran = command(
        "configure", log, *PHASES, *MODELS, "--gpus", 2, "--ranks", 1, "--batch-per-rank", 16, "--mode", "any+stages"
    )
    assert "mode 'any' is all modes already: it stands alone, got 'any+stages'" in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", 3), "ranks must be 2, the replicas of "),
        (("--ranks", 2, *keys("cut.stages={vision=1,llm=1}")), "cut.stages cannot be combined with layout"),
    ],
)
def test_a_layout_that_does_not_go_with_the_rest(command, log, tmp_path, words, message):
    path = tmp_path / "layout.json"
    path.write_text('{"mode": "before", "modules": {"vision": {"dp": 2}, "llm": {"dp": 2}}}')
    ran = command("plan", log, *PHASES, *COSTS, *words, "--batch-per-rank", 4, *keys(f"layout={path}"))
    assert ran.code == 2
    assert message in ran.err


def test_a_generator_is_laid_out_and_compared(command, log, tmp_path):
    phases = (*PHASES, *keys("phase.speech.length=patches", "phase.speech.model=whisper-large-v3-encoder"), *MODELS)
    asked = ("--gpus", 4, "--ranks", 1, "--batch-per-rank", 16, "--layouts", 2, "--generator", "speech")
    path = tmp_path / "speech.json"
    ran = command("configure", log, *phases, *asked, "--out", path)
    assert "Generators (speech) are last stages, where a micro-batch turns" in ran.out
    assert "balancer simulate" in ran.out
    assert "balancer plan" not in ran.out
    words = ("--layout", path)
    told = json.loads(command("simulate", log, *phases, "--ranks", 1, "--batch-per-rank", 16, *words, "--json").out)
    assert [(each["layout"]["mode"], each["layout"]["generators"]) for each in told["layouts"].values()] == [
        ("stages", ["speech"])
    ]
    ran = command(
        "plan",
        log,
        *PHASES,
        *typed("phase.speech.length=patches --ranks 1 --batch-per-rank 4"),
        *keys(f"layout={path}"),
    )
    assert "does not say what generators do (speech); see it with simulate --layout" in ran.err
    for mode in ("before", "multiplexed"):
        ran = command("configure", log, *phases, *asked, "--mode", mode)
        assert f"--mode '{mode}' has no place for generators (speech), which are last stages" in ran.err
        assert "use --mode 'stages'" in ran.err
    ran = command("configure", log, *phases, *asked[:-1], "llm")
    assert "--generator must be the last of the phases vision, llm, speech, after the language model" in ran.err
    ran = command("configure", log, *PHASES, *MODELS, *asked[:-1], "llm")
    assert "--generator must be after the language model, which 'vision', the phase before them, is not" in ran.err
