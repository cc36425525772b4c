"""Choosing a layout: beside an exhaustive search, again, and where there is none."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import balancer
from balancer.cost import ThroughputCurve
from balancer.errors import InputError
from balancer.layout_choice import candidates as layouts_room
from balancer.layout_choice import choose as room
from balancer.layout_choice.bounds import LayoutCase, room_of
from balancer.layout_choice.candidates import numbers_of_slots, stubs_of
from balancer.layout_choice.given import given_of
from balancer.layout_choice.price import price, timeline
from balancer.layouts.layout import LAYOUT_MODES, ModuleLayout, StepLayout
from balancer.report.layouts import assumptions, excluded
from balancer.simulate.cluster import CLUSTERS
from solvers.errors import InfeasibleError

SHIPPED = str(Path(__file__).parents[2] / "data" / "omni_mix_dev.parquet")
PHASES = {"vision": "patches", "llm": "tokens"}
MODELS = {"vision": "internvit-300m", "llm": "qwen2-7b"}
GENERATES = {"phases": PHASES | {"speech": "frames"}, "models": MODELS | {"speech": "whisper-large-v3-encoder"}}
SMALL = replace(CLUSTERS["h100"], gpus_per_node=2)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("configure") / "log.parquet"
    rng = np.random.default_rng(0)
    columns = {"patches": rng.integers(0, 9, 24) * 256, "tokens": rng.integers(20, 2000, 24)}
    pq.write_table(pa.table(columns | {"frames": rng.integers(0, 2, 24) * rng.integers(10, 1500, 24)}), path)
    return str(path)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(room, "_EACH_S", 1e-4)
    monkeypatch.setattr(room, "LAST_S", 1e-4)


def configured(log, num_gpus=4, batch=8, **more):
    asked = {"phases": PHASES, "models": MODELS, "batch": batch, "cluster": SMALL, **more}
    return balancer.configure(log, num_gpus, **asked)


def every_layout(given):
    """All layouts of these GPUs in nodes of 2, by the rules of layouts alone, with all numbers of micro-batches."""
    names, counts = ("tp", "pp", "dp", "recompute", "cp", "sp"), (1, 2, 3, 4)
    whole = [ModuleLayout(**dict(zip(names, each, strict=True)))
             for each in product((1, 2), counts, counts, (False, True), counts, counts)
             if each[0] * each[1] * each[2] * each[4] * each[5] <= given.num_gpus]  # fmt: skip
    beside = [one for one in whole if one.sequence_shards == 1]
    for mode, llm, chunks, *others in product(LAYOUT_MODES, whole, (1, 2), *[beside] * (len(given.models) - 1)):
        sizes = [one.num_gpus for one in (llm, *others)]
        if (
            others[0].recompute != others[-1].recompute
            or (sum if mode == "stages" else max)(sizes) != given.num_gpus
            or (chunks == 2 and (llm.pp == 1 or mode != "before"))
        ):
            continue
        order = [*others[:1], replace(llm, chunks=chunks), *others[1:]]
        try:
            layout = StepLayout(dict(zip(given.models, order, strict=True)), mode, generators=given.generators)
            layout.check_models(given.models, 2)
        except ValueError:
            continue
        most, devices = 4 // llm.dp, layout.num_devices
        yield from ((layout, slots) for slots in range(1, most + 1) if chunks == 1 or slots % devices == 0)


@pytest.mark.parametrize(("gpus", "generators"), [(3, ()), (4, ("speech",))])
def test_the_winner_beside_an_exhaustive_search(log, monkeypatch, gpus, generators):
    monkeypatch.setattr(layouts_room, "_ZERO_STAGES", (1,))
    found = configured(log, gpus, batch=4, generators=generators, **(GENERATES if generators else {}))
    given, best, tried = found.case.given, np.inf, 0
    stubs = list(stubs_of(given, list(found.counts)))
    assert sum(sum(counts.values()) for counts in found.counts.values()) == len(stubs)
    assert set(found.counts) == ({"stages"} if generators else set(LAYOUT_MODES))
    assert found.counts["stages"]["scheduled"] > 0
    enumerated = [stub.layout(given) for stub in stubs]
    listed = {(str(layout), slots) for layout in enumerated for slots in numbers_of_slots(given, layout)}
    for layout, slots in every_layout(given):
        case = LayoutCase.of(given, layout, slots)
        tried += (str(layout), slots) in listed
        if case.least_bytes <= room_of(given) and (each := price(case, 1e-4)):
            best = min(best, each.seconds)
            assert each.seconds >= each.lower_bound_s * (1 - 1e-6)
            assert each.seconds >= case.bound_s * (1 - 1e-6)
            assert each.seconds >= found.lower_bound_s * (1 - 1e-6) or (str(layout), slots) not in listed
            assert case.least_bytes <= each.bytes * (1 + 1e-6) <= room_of(given)
            assert 0 <= each.idle < 1
            assert 0 < each.mfu < 0.5
    assert tried == len(listed)
    assert found.winner.seconds <= (1.02 if generators else 1.01) * best  # 4 micro-batches on 3 devices are not tried
    assert found.formula.seconds >= found.winner.seconds
    assert timeline(found.case, 1e-4).run.makespan > 0


def test_many_replicas_with_little_memory_are_near_their_bound():
    """Of the shipped log's long samples, by a search of a fiftieth of a second."""
    models = {"vision": "internvit-6b", "audio": "whisper-large-v3-encoder", "llm": "qwen2-72b"}
    phases = {"vision": "image_patches", "audio": "audio_frames", "llm": "text_tokens+image_tokens+audio_tokens"}
    given = given_of(SHIPPED, 512, phases, models, 4096, cluster="h200", num_steps=1, pieces={"vision": 1024})
    one = ModuleLayout(dp=512)
    layout = StepLayout({"vision": one, "audio": one, "llm": ModuleLayout(tp=2, pp=8, dp=8, cp=4)}, "multiplexed")
    found = price(LayoutCase.of(given, layout, 48), 0.02)
    assert found.seconds <= 1.12 * found.lower_bound_s
    assert found.bytes <= room_of(given)


def test_what_is_frozen_has_a_backward_for_what_is_trained_before_it(log):
    given = configured(log, layouts=1, generators="speech", **GENERATES).case.given
    for frozen, times in (((), (2, 2, 2)), (("speech", "vision"), (0, 2, 1)), (("llm", "vision"), (0, 0, 2))):
        some = replace(given, frozen=frozenset(frozen))
        assert tuple(some.backward_times(name, recompute=False) for name in some.models) == times


def test_what_has_no_backward_gathers_no_parameters_for_one(log):
    given = given_of(log, 2, {"llm": "tokens"}, {"llm": "qwen2-7b"}, 2, cluster=SMALL, frozen=["llm"])
    case = LayoutCase.of(given, StepLayout({"llm": ModuleLayout(dp=2, zero_stage=3)}), 1)
    assert case.bound_s <= price(case, 1e-4).seconds * (1 + 1e-6)


def test_the_same_again(log):
    first, second = (configured(log, mode="stages", num_steps=2) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert len(first.case.given.steps) == 2
    assert set(first.best) == {"stages"}


def test_what_was_not_scheduled_is_told(log):
    few, more = (configured(log, mode="stages", layouts=count) for count in (1, 4))
    assert (few.counts["stages"]["scheduled"], more.counts["stages"]["scheduled"]) == (1, 4)
    assert more.winner.seconds <= few.winner.seconds
    found, may = few, "may be faster than estimated: --layouts schedules more of them."
    for left, told in ((1200, f"1,200 layouts {may}"), (1, f"1 layout {may}"), (0, "None of these takes less")):
        counts = {"stages": dict.fromkeys(room.REASONS, 1) | {"estimate": left}}
        assert list(excluded(replace(found, counts=counts)))[1].startswith(told)
    (assumed,) = assumptions(replace(found.case.given, num_gpus=1))
    assert re.match(r"Assumed: 1 GPU, 1 step of \d+ samples;", assumed)


def test_a_layout_that_is_given(log):
    given = configured(log, mode="stages", layouts=1).case.given
    llm = ModuleLayout(tp=2, pp=2)
    layouts = [StepLayout({"vision": ModuleLayout(dp=4), "llm": llm}, mode) for mode in ("before", "multiplexed")]
    before, between = room.price_layouts(given, layouts)
    assert before.encoder_s > 0 == between.encoder_s
    assert before.layout.micro_batch_tokens > 0
    with pytest.raises(ValueError, match="layouts must be of at most 4 GPUs, got 8"):
        room.price_layouts(given, [StepLayout({"vision": ModuleLayout(dp=8), "llm": ModuleLayout(dp=8)}, "before")])


def test_what_cannot_be(log):
    with pytest.raises(InfeasibleError, match=r"none of \d+ layouts with num_gpus = 1 fits the memory"):
        configured(log, num_gpus=1)
    with pytest.raises(ValueError, match=r"unknown mode 'behind'; known modes are any, stages"):
        configured(log, mode="behind")
    with pytest.raises(ValueError, match=r"unknown mode \['before'\]; known"):
        configured(log, mode=["before"])
    with pytest.raises(ValueError, match="pieces must be >= 1, got 0"):
        configured(log, pieces={"vision": 0})
    for name, odd in (("cluster", 5), ("throughput", {"llm": 5}), ("throughput", {"llm": {2: "fast"}})):
        with pytest.raises(TypeError, match=f"{name} must be a {name.title()}, or"):
            configured(log, **{name: odd})
    with pytest.raises(ValueError, match="models must be of the phases vision, llm"):
        balancer.configure(log, 4, PHASES, {**MODELS, "audio": "qwen2-7b"}, 8)
    with pytest.raises(ValueError, match="phase 'llm' has no model"):
        balancer.configure(log, 4, PHASES, {"vision": "internvit-300m"}, 8)
    with pytest.raises(ValueError, match="has 0 full batches of 32 rows, and 1 are asked for"):
        configured(log, batch=32)


def test_rates_measured_by_tensor_shards(log, tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("tokens,flops_per_second,tp\n1000,4e14,1\n1000,1e14,2\n")
    curves = ThroughputCurve.by_shards(path)
    assert sorted(curves) == [1, 2]
    found = configured(log, mode="stages", throughput={"llm": curves})
    assert found.winner.layout.llm.tp == 1
    path.write_text("tokens,flops_per_second,tp\n1000,4e14,1.5\n")
    with pytest.raises(InputError, match=r"column 'tp', row 0: '1\.5' must be a positive whole number"):
        ThroughputCurve.by_shards(path)
