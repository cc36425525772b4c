"""Plans of layouts whose encoders run in the gaps of the LLM's pipeline: as priced, written, read back, checked."""

import dataclasses
import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_files import header_of, tamper
from typed_words import keys, typed

import balancer
from balancer.errors import PlanError
from balancer.executor.arguments import as_setup
from balancer.layout_choice import choose as room
from balancer.layout_choice.choose import price_layouts
from balancer.layout_choice.given import given_of
from balancer.layouts.layout import StepLayout, read_layout
from balancer.offline.load import checked_steps
from balancer.plan.gaps import DeviceOp
from balancer.report.charts import COLORS
from solvers.errors import SolverError
from solvers.pipeline import PipelineRequest, TaskRequest, check_multiplex

BUDGET = 1e-3
PHASES = keys("phase.vision.length=patches", "phase.audio.length=frames", "phase.llm.length=tokens")
MODELS = (
    *keys(
        "phase.vision.model=internvit-300m",
        "phase.audio.model=whisper-large-v3-encoder",
        "phase.llm.model=qwen2-7b",
        "phase.vision.pieces=256",
    ),
    "--cluster",
    "h100",
)
NAMES = {"vision": "patches", "audio": "frames", "llm": "tokens"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A log of two steps, and a layout with encoders in the gaps of two replicas of two stages, as it was priced."""
    folder = tmp_path_factory.mktemp("gaps")
    return folder, priced_in(folder, "winner.json", {"vision": {"dp": 8}, "audio": {"dp": 8}})


def priced_in(folder, name, others):
    """Write a log, and a layout for it whose language model has two replicas of two stages."""
    rng = np.random.default_rng(0)
    columns = {"patches": rng.integers(0, 9, 32) * 256, "tokens": rng.integers(20, 2000, 32),
               "frames": rng.integers(0, 2, 32) * rng.integers(10, 1500, 32)}  # fmt: skip
    pq.write_table(pa.table(columns), folder / "log.parquet")
    said = (word.removeprefix("phase.").split(".model=") for word in MODELS if ".model=" in word)
    models = dict(said)
    modules = others | {"llm": {"tp": 2, "pp": 2, "dp": 2}}
    names = {each: NAMES[each] for each in modules}
    given = given_of(
        str(folder / "log.parquet"), 8, names, {each: models[each] for each in names}, 16, cluster="h100",
        pieces={"vision": 256} if "vision" in names else {},
    )  # fmt: skip
    layout = StepLayout.from_json({"mode": "multiplexed", "modules": modules, "micro_batches": 4})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_EACH_S", BUDGET / 10)
        patch.setattr(room, "LAST_S", BUDGET)
        (priced,) = price_layouts(given, [layout])
    (folder / name).write_text(json.dumps(priced.layout.to_json()))
    return priced


def options(folder, *more, ranks=2, phases=PHASES, layout="winner.json"):
    asked = (*phases, "--ranks", ranks, "--batch-per-rank", 8, *keys(f"layout={folder / layout}"))
    return "plan", folder / "log.parquet", *asked, *keys(f"plan.time_budget={BUDGET}"), *more


def checked(plan):
    """Check each replica of a plan from scratch, with no code of the solver."""
    cut, llm = plan.setup.settings.cut, plan["llm"]
    ops, tasks = cut.stages.gaps.of_ops(), llm.gaps.tasks
    pipe, besides = (ops.pop("forward"), ops.pop("backward")), ops
    for rank in range(llm.num_ranks):
        mine = np.flatnonzero(llm.rank_of_sample[tasks.sample] == rank)
        slots = llm.slot_of_sample[tasks.sample[mine]]
        run = llm.gap_run(rank)
        given = TaskRequest(slots, tasks.forward[mine], tasks.backward[mine], 2, tasks.size[mine])
        check_multiplex(PipelineRequest(llm.work_of_slots[rank], *pipe, **besides), given, run)
        yield run


def simulated(llm, rank):
    """Run what `device_ops` lists, in turn, with no code of the solver or its check; return when all has ended."""
    stages, tasks = llm.cut.stages, llm.gaps.tasks
    ops, last, (part, parts) = stages.gaps.of_ops(), stages.num_stages - 1, tasks.part
    numbers = {(tasks.sample[i], part[i]): i for i in range(len(tasks.sample))}
    queues = [llm.device_ops(rank, device) for device in range(stages.num_devices)]
    starts, ends, free = {}, {}, [0] * len(queues)
    mine = [op for queue in queues for op in queue if op.stage is None]

    def takes(op):
        if op.stage is not None:
            way = "backward" if op.backward else "forward"
            work = llm.work_of_slots[rank][op.slot] @ ops[way][:, op.stage]
            return int(work + ops[f"{way}_overhead"][op.stage])
        i = numbers[op.sample, op.part]
        assert op.parts == parts[i]
        return int((tasks.backward if op.backward else tasks.forward)[i])

    def needed(op):
        """Of what it has to wait for the end, and for the start."""
        stage = DeviceOp(op.slot, op.backward, op.stage)
        if op.stage is None and op.backward:
            return [DeviceOp(op.slot, True, 0)], []
        if op.stage is None:
            return [], [DeviceOp(op.slot - len(queues), False, 0)] * (op.slot >= len(queues))
        if op.backward and op.stage == last:
            return [stage._replace(backward=False)], []
        if op.backward or op.stage:
            return [stage._replace(stage=op.stage + (1 if op.backward else -1))], []
        return [t for t in mine if not t.backward and t.slot == op.slot], []

    where = {op: device for device, queue in enumerate(queues) for op in queue}
    while any(queues):
        for device in (device for device, queue in enumerate(queues) if queue):
            op = queues[device][0]
            before, begun = needed(op)
            if all(each in ends for each in before) and all(each in starts for each in begun):
                ready = [ends[each] + ops["hop"] * (where[each] != device) for each in before]
                starts[op] = max([free[device], *ready, *(starts[each] for each in begun)])
                ends[op] = free[device] = starts[op] + takes(op)
                queues[device].pop(0)
                break
        else:
            raise AssertionError(f"waits forever: {[queue[:1] for queue in queues]}")
    return max(free)


def test_a_plan_is_what_was_priced_and_the_same_by_every_way(command, made):
    folder, priced = made
    path = folder / "plan.parquet"
    assert command(*options(folder, "--out", path)).code == 0
    first, second = checked_steps(path)
    assert first["llm"].makespan / 1e10 + priced.sync_s == pytest.approx(priced.seconds, rel=1e-12)
    assert first["llm"].lower_bound / 1e10 + priced.sync_s == pytest.approx(priced.lower_bound_s, rel=1e-12)
    for plan in (first, second):
        assert max(run.makespan for run in checked(plan)) == plan["llm"].makespan
        assert plan["llm"].pipeline_makespans().tolist() == [simulated(plan["llm"], rank) for rank in range(2)]
        for name in ("vision", "audio"):
            of = plan.phases[name].items.sample_of_item
            assert (plan[name].rank_of_sample == plan["llm"].rank_of_sample[of]).all()
    header, parts = header_of(path), folder / "parts"
    assert command(*options(folder, "--out", f"{parts}/")).code == 0
    assert header_of(parts)["description"]["digest"] == header["description"]["digest"]
    reported = command("report", path, "--html", folder / "page.html")
    assert "complete, checked" in reported.out
    page = (folder / "page.html").read_text()
    assert ">encoders</text>" in page
    assert "2 pipeline stages, 1F1B, vision and audio in its gaps" in page
    assert "in the gaps of the last phase" in page
    assert "encoders that the plan has in gaps run before them, evenly on all devices." in page
    assert "Before, encoders run ahead of the pipeline" in page
    shown = max((first, second), key=lambda plan: plan["llm"].home_imbalance_ratio - plan["llm"].imbalance_ratio)["llm"]
    rank = int(np.argmax(shown.pipeline_makespans()))
    ran = sum(op.stage is None for device in range(2) for op in shown.device_ops(rank, device))
    drawn = re.findall(rf'<path d="([^"]*)"[^>]*stroke: {COLORS["phase-1"]}', page)
    assert [path.count("M") for path in drawn] == [2, ran, 1]  # before, one on each device; planned; the legend
    first.save(folder / "one.parquet")
    assert balancer.load_plan(folder / "one.parquet").digest() == first.digest()
    table = {name: pq.read_table(folder / "log.parquet")[name].to_numpy()[:16] for name in NAMES.values()}
    cut = balancer.Pipelines.in_gaps(read_layout(folder / "winner.json").times)
    alone = balancer.orchestrate(table, NAMES, 2, cut=cut, time_budget=BUDGET, placement="relocate")
    assert alone.digest() == first.digest()


def test_what_configure_writes_is_planned_as_it_says(command, made, tmp_path):
    log, path = made[0] / "log.parquet", tmp_path / "chosen.json"
    asked = (*typed("--gpus 2 --ranks 1 --batch-per-rank 16 --mode multiplexed"), "--out", path)
    told = command("configure", log, *PHASES, *MODELS, *asked).out.splitlines()[-1]
    assert told.startswith(f"  balancer plan {log} --ranks ")
    assert command(*shlex.split(told)[1:]).code == 0
    found, plan = json.loads(path.read_text())["found"], tmp_path / "chosen-plan.parquet"
    first = next(iter(checked_steps(plan)))
    assert first["llm"].makespan / 1e10 + found["sync_s"] == pytest.approx(found["seconds"], rel=1e-12)


def test_a_timeline_shows_what_devices_run(command, made):
    """And, before, encoders ahead of the pipeline, for as long as makespans say."""
    folder, _ = made
    command(*options(folder, "--out", folder / "drawn.parquet"))
    llm = next(iter(checked_steps(folder / "drawn.parquet")))["llm"]
    for rank in range(2):
        run, between = llm.pipeline_run(rank), llm.between(rank)
        begins, ends = (run.forward_start, run.backward_start), (run.forward_end, run.backward_end)
        for device in range(2):
            here = between.device == device
            drawn = sorted(zip(between.start[here], (between.start + between.takes)[here], strict=True))
            spans = [
                drawn.pop(0) if op.stage is None
                else tuple(times[op.backward][op.slot, op.stage] for times in (begins, ends))
                for op in llm.device_ops(rank, device)
            ]  # fmt: skip
            assert drawn == []
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))
            assert run.busy[device] == sum(end - start for start, end in spans)
        home, ahead = llm.pipeline_run(rank, home=True), llm.between(rank, home=True)
        assert home.makespan == llm.pipeline_makespans(home=True)[rank] == home.busy[0] + home.idle[0]
        assert home.forward_start.min() == ahead.takes.max() > 0
        assert ahead.device.tolist() == [0, 1]
    assert balancer.balance([3, 1], 2).between(0) is None


def test_a_step_that_does_not_fit_has_more_micro_batches(made):
    folder, _ = made
    times = read_layout(folder / "winner.json").times
    table = {name: pq.read_table(folder / "log.parquet")[name].to_numpy()[:16] for name in NAMES.values()}
    found = {}

    def plan_in_less_and_less():
        for share in (1, 0.5, 0.2, 0.1, 0.09, 0.05, 0.02, 0.01, 0.005):
            cut = balancer.Pipelines.in_gaps(replace(times, room=tuple(share * room for room in times.room)))
            plan = balancer.orchestrate(table, NAMES, 2, cut=cut, time_budget=BUDGET)
            found[plan.num_slots] = plan

    with pytest.raises(SolverError, match="judge layouts by more steps"):
        plan_in_less_and_less()
    assert list(found) == [4, 8]  # 16 would be more than there are samples
    for plan in found.values():
        plan.save(folder / "slots.parquet")
        assert balancer.load_plan(folder / "slots.parquet").digest() == plan.digest()
        assert max(run.makespan for run in checked(plan)) == plan["llm"].makespan


def swapped(name, change):
    def rows(cells):
        tasks = [cell for cell in cells if cell["phase"] == "llm:gaps" and cell["step"] == 0]
        change(name, tasks)

    return rows


def one_more(name, tasks):
    tasks[0][name] += 1


def two_in_the_same_gap(name, tasks):
    """Which run as well the other way round."""
    place = {}
    for task in tasks:
        other = place.setdefault((task["rank"], task["device"], task["slot"]), task)
        if other is not task:
            task[name], other[name] = other[name], task[name]
            return


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (swapped("position", two_in_the_same_gap), "the digest of its 2 steps is"),
        (
            swapped("backward", lambda name, tasks: tasks[0].update(backward=0)),
            "turns of tasks on device|wait for each",
        ),
        (swapped("position", one_more), "turns of tasks on device|wait for each other|the digest"),
        (swapped("device", one_more), "task_device|turns of tasks on device"),
        (swapped("slot", one_more), "in its slot: "),
        (swapped("item", one_more), "in its slot: "),
        (swapped("rank", lambda name, tasks: tasks[0].update(rank=1 - tasks[0]["rank"])), "on the sample's rank"),
        (lambda cells: cells.remove(next(cell for cell in cells if cell["phase"] == "llm:gaps")), "each part of each"),
        (lambda cells: cells[0].update(device=1), "phase 'vision': device must be -1 but for what is in gaps, got 1"),
    ],
)
def test_a_tampered_turn_device_or_slot_is_found(command, made, tmp_path, rows, told):
    folder, _ = made
    command(*options(folder, "--out", tmp_path / "plan.parquet"))
    tamper(tmp_path / "plan.parquet", rows)
    with pytest.raises(PlanError, match=told):
        list(checked_steps(tmp_path / "plan.parquet"))


@pytest.mark.parametrize(("lacking", "told"), [(("device",), "'device'"), (("backward",), "'backward'")])
def test_columns_that_are_not_there_are_named(command, made, tmp_path, lacking, told):
    folder, _ = made
    command(*options(folder, "--out", f"{tmp_path}/plan/"))
    for part in (tmp_path / "plan").glob("*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(list(lacking)), part)
    with pytest.raises(PlanError, match=f"encoders run in gaps, and there is no column {told}$"):
        list(checked_steps(tmp_path / "plan"))


def test_parts_are_of_few_steps_as_each_takes_long(command, made, tmp_path, monkeypatch):
    monkeypatch.setattr("balancer.offline.settings._STEPS_IN_GAPS", 1)
    planned, again = (command(*options(made[0], "--out", f"{tmp_path}/plan/", *more)) for more in ((), ()))
    assert len(list((tmp_path / "plan").glob("part-*.parquet"))) == 2
    assert planned.out.rpartition("32 samples in")[0] == again.out.rpartition("32 samples in")[0] != ""
    assert command("report", f"{tmp_path}/plan/").code == 0


def test_a_plan_that_does_not_fit_the_memory_is_found(command, made, monkeypatch):
    folder, _ = made
    command(*options(folder, "--out", folder / "full.parquet"))
    # what tasks hold, and not what there is room for
    monkeypatch.setattr("balancer.cuts.pipelines.gap_plan.UNIT_BYTES", 2**40)
    with pytest.raises(PlanError, match=r"device . of rank . holds [0-9,]+ bytes, and has room for"):
        list(checked_steps(folder / "full.parquet"))


def test_what_does_not_go_with_gaps_is_refused_by_name(command, made, tmp_path):
    folder, _ = made
    beside = "cannot be combined with layout of mode 'multiplexed'"
    assert "ranks must be 2, the replicas of" in command(*options(folder, ranks=4)).err
    for words, told in (
        (keys("cut.tokens=99"), f"cut.tokens {beside}"),
        (keys("phase.llm.cost=flops:qwen2-7b"), f"cost of phases {beside}"),
        (keys("cut.count=8"), f"cut.count {beside}"),
        (keys("plan.group_size=1"), "cannot be combined with"),
    ):
        assert told in command(*options(folder, *words)).err
    layout = json.loads((folder / "winner.json").read_text())
    slow = {"per_flop": 1e9, "per_element": 0.0, "backward": 2}
    changed = {
        "other": (layout | {"micro_batches": 8}, "times are of another layout"),
        "many": (
            layout | {"micro_batches": 100_000, "times": layout["times"] | {"slots": 100_000}},
            f"{tmp_path / 'winner.json'}: cut.count must be <= 4096 where encoders run in gaps, got 100000",
        ),
        "none": ({k: v for k, v in layout.items() if k != "times"}, "does not say what its modules take"),
        "long": (
            layout | {"times": layout["times"] | {"rates": dict.fromkeys(NAMES, slow)}},
            "by these times a step takes more seconds than can be counted",
        ),
        "broken": (
            layout | {"times": layout["times"] | {"room": [1.0]}},
            "must have 1 stages, as 'room' and 'chunks' say",
        ),
        "unknown": (layout | {"times": layout["times"] | {"hops": 1}}, "times have the unknown key 'hops'"),
        "lacking": (layout | {"times": {}}, "times lack 'layout'"),
        "word": (
            layout | {"times": layout["times"] | {"hop": "fast"}},
            "hop must be a number from 0 to 2^60, got 'fast'",
        ),
        "half": (
            layout | {"times": layout["times"] | {"replicas": 1.5}},
            "replicas must be a whole number from 1 to 2^60, got 1.5",
        ),
        "slots": (
            layout | {"times": layout["times"] | {"slots": 0}},
            "slots must be a whole number from 1 to 2^60, got 0",
        ),
        "flops": (
            layout | {"times": layout["times"] | {"flops": {"llm": [1]}}},
            "flops['llm']: FLOPs must be three whole numbers",
        ),
        "replicas": (
            layout | {"times": layout["times"] | {"replicas": 7}},
            "times: replicas must be 2, as the modules",
        ),
        "rates": (layout | {"times": layout["times"] | {"rates": {}}}, "is missing; configure anew"),
    }
    for name, (found, told) in changed.items():
        (tmp_path / "winner.json").write_text(json.dumps(found))
        ran = command(*options(folder)[:-4], *keys(f"layout={tmp_path / 'winner.json'}"))
        assert (name, ran.code, told in ran.err) == (name, 2, True)
    priced = ("simulate", *options(folder)[1:-2], *MODELS, "--strategies", "orchestrated")
    assert "a layout with encoders in gaps has no strategies to compare" in command(*priced).err
    cut = balancer.Pipelines.in_gaps(read_layout(folder / "winner.json").times)
    several = dataclasses.replace(cut.stages.gaps, piped=("vision", "llm"))
    with pytest.raises(ValueError, match="a pipeline is of one module, and these times have vision, llm"):
        balancer.Pipelines.in_gaps(several)
    with pytest.raises(TypeError, match="times must be those of a layout of mode 'multiplexed'"):
        balancer.Pipelines.in_gaps(None)  # as layouts of other modes have them
    with pytest.raises(ValueError, match="must have as many processes, got 1"):
        as_setup(balancer.Topology([2]), NAMES, "linear", None, {"cut": cut})
    with pytest.raises(ValueError, match=r"Pipelines.in_gaps\(layout.times\)"):
        balancer.orchestrate({}, NAMES, 8, layouts=read_layout(folder / "winner.json"))
