"""`balancer plan` of several phases and `report`: phases in one plan file, numbers that anyone can recompute."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_files import plan_rows
from phases_log import BATCH, FRAMES, ITEMS, LISTS, PHASES, RANKS, ROWS, SHAPE, SIDES, TEXT, write_phases
from plan_files import description_of
from typed_words import keys, typed

import balancer
from balancer.offline.load import checked_steps


@pytest.fixture
def log(tmp_path):
    return write_phases(tmp_path)


def document_of(outcome):
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    return json.loads(outcome.out)


def costs(**of_phases):
    return [word for name, cost in of_phases.items() for word in keys(f"phase.{name}.cost={cost}")]


UNEVEN = costs(**dict.fromkeys(("vision", "audio", "llm"), "quadratic:a=0,b=1"))
"""Under these costs long samples are alone on their ranks, unless asked not to."""


# --- plan and report -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "options"),
    [
        ("plan.parquet", (*ITEMS, *keys("plan.mode=joint", "home=strided"))),
        ("plan/", (*ITEMS, *keys("plan.group_size=2", "drop_last=true"))),
        ("plan/", (*ITEMS, *keys("cut.tokens=3000", "cut.encoders=step"))),
        ("plan.parquet", (*PHASES, *keys("phase.audio.outputs=image_patches", "plan.placement=any"))),
    ],
)
def test_report_says_what_plan_said(out, options, command, log):
    said = document_of(command("plan", log, *SHAPE, *options, "--out", out, "--overwrite", "--json"))
    found = document_of(command("report", out, "--json"))
    assert list(said["phases"]) == list(found["phases"]) == ["vision", "audio", "llm"]
    for name, phase in found["phases"].items():
        for key, value in phase.items():
            assert value == said["phases"][name][key], (name, key)
    assert found["streams"] == said["streams"]
    for key in ("steps", "samples", "fell_back_steps"):
        assert found[key] == said[key]


def test_json_against_loops_over_the_plan_file(command, log):
    options = (*ITEMS, *keys("drop_last=true"))
    document = document_of(command("plan", log, *SHAPE, *options, "--out", "plan.parquet", "--overwrite", "--json"))
    rows = plan_rows("plan.parquet")
    per_step = RANKS * BATCH
    rank = {(r["phase"], r["sample"], r["item"]): r["rank"] for r in rows}
    patches = [
        balancer.problem.items.qwen2vl_patches(*np.array(s).reshape(-1, 2).T).tolist() if s else [] for s in SIDES
    ]
    total = inter = sent_out = 0
    before = after = mean = 0.0
    for first in range(0, ROWS - per_step + 1, per_step):
        home_loads, loads = [0] * RANKS, [0] * RANKS
        for sample in range(first, first + per_step):
            home = (sample - first) // BATCH
            for item, length in enumerate(patches[sample]):
                at, llm = rank["vision", sample, item], rank["llm", sample, 0]
                home_loads[home] += length
                loads[at] += length
                total += 7 * length
                inter += 7 * length * (home // 2 != at // 2)
                sent_out += 3 * (length // 4) * (at // 2 != llm // 2)
        before, after, mean = before + max(home_loads), after + max(loads), mean + sum(loads) / RANKS
    vision = document["phases"]["vision"]
    assert vision["imbalance_ratio_before"] == pytest.approx(before / mean)
    assert vision["imbalance_ratio_after"] == pytest.approx(after / mean)
    stream = document["streams"]["vision:in"]
    assert (stream["bytes"], stream["crosses_nodes_bytes"]) == (total, inter)
    assert document["streams"]["vision:out"]["crosses_nodes_bytes"] == sent_out
    assert document["streams"]["llm:own"]["bytes"] == 4 * sum(TEXT[: 2 * per_step])
    assert (document["steps"], document["samples"]) == (2, 2 * per_step)


def test_the_plan_file_is_what_the_library_plans(command, log):
    assert command("plan", log, *SHAPE, *ITEMS, "--out", "plan.parquet", "--overwrite").code == 0
    description = description_of("plan.parquet")
    assert [phase["name"] for phase in description["phases"]] == ["vision", "audio", "llm"]
    assert description["sources"][0]["unit"]["audio"] == "as recorded"
    plans = list(checked_steps("plan.parquet"))
    phases = [
        balancer.Phase("vision", f"qwen2vl_patches{LISTS}", outputs=f"qwen2vl_tokens{LISTS}"),
        balancer.Phase("audio", "audio_frames"),
        balancer.Phase("llm", "total", own="text_tokens"),
    ]
    cut = slice(0, RANKS * BATCH)
    batch = {
        "image_widths": balancer.Ragged.of([[w for w, _ in sides] for sides in SIDES[cut]]),
        "image_heights": balancer.Ragged.of([[h for _, h in sides] for sides in SIDES[cut]]),
        "audio_frames": FRAMES[cut],
        "text_tokens": TEXT[cut],
        "total": [t + f for t, f in zip(TEXT[cut], FRAMES[cut], strict=True)],
    }
    direct = balancer.orchestrate(batch, phases, balancer.Topology.uniform(RANKS, 2))
    for name in ("vision", "audio"):
        assert plans[0][name].target == direct[name].target


def test_what_is_assumed_is_said(command, tmp_path):
    columns = {"image": [9, 0, 9, 9], "tokens": [4, 0, 3, 4], "text": [1, 2, 5, 3], "all": [5, 2, 8, 7]}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    shape = ("plan", "log.parquet", "--ranks", 2, "--batch-per-rank", 2, *keys("phase.v.length=image"))
    silent, fed = "v: puts out as many elements as taken in (no outputs given)", "it is fed more than its length"
    for options, said in (
        (keys("phase.llm.length=all"), [silent, "llm: in 3 of the first 4 samples it is fed more than its length"]),
        (keys("phase.llm.length=text", "phase.v.outputs=tokens"), ["llm: in 2 of the first 4 samples it is fed more"]),
        (keys("phase.llm.length=all", "phase.v.outputs=tokens"), []),
        (keys("phase.llm.length=text", "phase.v.outputs=tokens", "phase.llm.own=text"), []),
        (keys("phase.llm.length=all", "phase.llm.own=text"), [silent]),
        (
            keys("phase.llm.length=all", "phase.llm.own=text", "phase.llm.model=qwen2-7b"),
            [silent, 'llm: planned by length; by the FLOPs of the model with cost = "flops:qwen2-7b"'],
        ),
        (
            keys(
                "phase.llm.length=all",
                "phase.llm.own=text",
                "phase.llm.model=qwen2-7b",
                "phase.llm.cost=flops:qwen2-7b",
            ),
            [silent],
        ),
        (keys("phase.llm.length=all", "phase.w.length=all", "phase.w.own=text"), ["v, llm: put out as many elements"]),
    ):
        outcome = command(*shape, *options)
        assert (outcome.code, outcome.err) == (0, "")
        for words in said:
            assert words in outcome.words
        assert ("no outputs given" in outcome.words) == any("put" in words for words in said)
        assert (fed in outcome.words) == any("fed" in words for words in said)
        assert ("by length;" in outcome.words) == any("by length" in words for words in said)


def test_idle_ranks_are_counted(command, tmp_path):
    pq.write_table(pa.table({"image": [0, 0, 5, 0], "text": [1, 2, 3, 4]}), tmp_path / "log.parquet")
    arguments = ("--ranks", 4, "--batch-per-rank", 1, *keys("phase.v.length=image", "phase.llm.length=text"))
    document = document_of(
        command("plan", "log.parquet", *arguments, *keys("phase.v.every_rank_nonempty=true"), "--json")
    )
    vision = document["phases"]["v"]
    assert (vision["idle_ranks_mean"], vision["idle_ranks_most"], vision["dummy_ranks_most"]) == (3, 3, 3)
    assert document["phases"]["llm"]["dummy_ranks_most"] == 0
    assert "idle ranks, mean and most 3, 3" in command("plan", "log.parquet", *arguments).words


def tokens_of(phase, lengths):
    tokens = np.zeros((-(-ROWS // (RANKS * BATCH)), RANKS), dtype=int)
    for row in plan_rows("plan.parquet"):
        tokens[row["step"], row["rank"]] += lengths[row["sample"]] if row["phase"] == phase else 0
    return tokens


def test_a_report_says_what_was_not_relocated_and_why(command, log):
    """Even where a replay cannot know: that no relocation was found."""
    steps = "steps samples were balanced first and laid on nodes afterwards, which moves more. "
    for options, phase, why in (
        (keys("phase.audio.cost=padded"), "audio", "Relocation takes no cost 'padded'."),
        (keys("phase.llm.initial_loads=[1,2,3,4,5,6]"), "llm", "Relocation does not take initial_loads."),
        (
            keys("phase.llm.max_tokens_per_rank=1620", "phase.llm.equal_counts=true", "plan.eps=0"),
            "vision",
            "No relocation under the cap was found",
        ),
    ):
        said = command("plan", log, *SHAPE, *PHASES, *options, "--out", "plan.parquet", "--overwrite").words
        found = command("report", "plan.parquet").words
        told = f"{phase}: in [0-9]+ of [0-9]+ {steps[:13]}"
        lines = [words[re.search(told, words).start() :].partition(steps)[::2] for words in (said, found)]
        assert lines[0][0] == lines[1][0]
        assert lines[0][1].startswith(why)
        assert lines[1][1].startswith(why)


# --- what every phase keeps to ---------------------------------------------------------------------------------------

LLM = [t + f for t, f in zip(TEXT, FRAMES, strict=True)]


def test_caps_on_columns_of_any_phase(command, log):
    """From the rows of the plan file: with the option they hold, and without it they would not."""
    kept = []
    for asked in (keys('phase.audio.caps={"text_tokens+audio_frames"=1500, "text_tokens"=900}'), ()):
        outcome = command("plan", log, *SHAPE, *PHASES, *UNEVEN, *asked, "--out", "plan.parquet", "--overwrite")
        assert outcome.code == 0, outcome.err
        kept.append(tokens_of("audio", LLM).max() <= 1500 and tokens_of("audio", TEXT).max() <= 900)
        assert command("report", "plan.parquet").code == 0
    assert kept == [True, False]


def test_keys_and_ranks_of_any_phase(command, log):
    rng = np.random.default_rng(2)
    books, ranks = [f"b{i}" for i in rng.integers(0, 25, ROWS)], [sorted({int(r), 5}) for r in rng.integers(0, 6, ROWS)]
    table = pq.read_table(log).append_column("book", pa.array(books))
    pq.write_table(table.append_column("ranks", pa.array(ranks, pa.list_(pa.int64()))), log)
    asked = keys("phase.vision.keep_together=book", "phase.audio.allowed_ranks=ranks", "phase.llm.keep_together=book")
    assert command("plan", log, *SHAPE, *ITEMS, *asked, "--out", "plan.parquet", "--overwrite").code == 0
    on = {}
    for row in plan_rows("plan.parquet"):
        if row["phase"] == "audio":
            assert row["rank"] in ranks[row["sample"]]
        else:
            on.setdefault((row["step"], row["phase"], books[row["sample"]]), set()).add(row["rank"])
    assert max(map(len, on.values())) == 1
    phases = {phase["name"]: phase for phase in description_of("plan.parquet")["phases"]}
    assert [phases[name].get("keep_together") for name in phases] == ["book", None, "book"]
    assert [phases[name].get("allowed_ranks") for name in phases] == [None, "ranks", None]
    assert command("report", "plan.parquet").code == 0


def test_speeds_and_loads_of_any_phase(command, log):
    speeds, before = (1, 1, 1, 2, 2, 4), (9000, 0, 0, 0, 0, 0)
    asked = keys("phase.audio.rank_speeds=[1,1,1,2,2,4]", "phase.llm.initial_loads=[9000,0,0,0,0,0]")
    document = document_of(
        command("plan", log, *SHAPE, *PHASES, *asked, "--out", "plan.parquet", "--overwrite", "--json")
    )
    full = ROWS // (RANKS * BATCH)  # steps; a short one is judged apart
    audio, llm = tokens_of("audio", FRAMES)[:full], tokens_of("llm", LLM)[:full]
    makespan = np.ceil(audio / np.array(speeds)).max(axis=1).sum()
    even = sum(step.sum() / sum(speeds) for step in audio)
    assert document["phases"]["audio"]["imbalance_ratio_after"] == pytest.approx(makespan / even, rel=1e-3)
    assert (llm[:, 0] == 0).all()  # which has more to do already than the others have after
    loaded = llm + np.array(before)
    assert document["phases"]["llm"]["imbalance_ratio_after"] == pytest.approx(
        loaded.max(axis=1).sum() / (loaded.sum() / RANKS)
    )
    assert document_of(command("report", "plan.parquet", "--json"))["phases"] == document["phases"]


def test_on_a_narrow_terminal_names_are_broken_and_numbers_are_not(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "log.csv").write_text(
        "images,tokens\n" + "".join(f"{i % 7 * 90},{i % 11 * 70 + 9}\n" for i in range(64))
    )
    first, last = "vision_encoder_of_many_billion_parameters", "language_model_behind_it"
    out = command(
        "plan",
        "log.csv",
        *typed("--ranks 4 --batch-per-rank 8"),
        *keys(f"phase.{first}.length=images", f"phase.{last}.length=tokens"),
    ).out
    assert "…" not in out.split("64 samples")[0]
    assert len(re.findall(r"imbalance ratio +\d\.\d+ +\d\.\d+ +\d\.\d+ *$", out, re.MULTILINE)) == 2
