"""Pipelines in seconds: how long each op of each replica takes, what waits, and what is held in flight."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from balancer.cuts.pipelines.plan import PipelinePlan
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.simulate.cluster import Cluster
from balancer.simulate.compute import Computed
from balancer.simulate.phase_model import PhaseModel
from solvers.errors import ArgumentError
from solvers.pipeline import PipelineRun

_PASSES = 3  # a forward, and a backward of twice as much: what a model's useful FLOPs count

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pipelined:
    """What the pipelines of a step do."""

    found: Mapping[str, Computed]  # of each phase, without the backwards that its stages do not run
    seconds: float  # until the last replica ends
    device_bytes: float  # the most on any device, in flight and for the layer at work, times the devices
    slowest_rank: int
    slowest: PipelineRun  # its replica, in nanoseconds; what is in flight, in bytes


def run_pipelines(
    plan: PipelinePlan, found: Mapping[str, Computed], models: Mapping[str, PhaseModel], cluster: Cluster
) -> Pipelined:
    """Run all replicas of a step, each stage as fast as its part of what was found of whole replicas.

    The plan is of the last phase; `found` is of the phases of its stages, as if all GPUs of a rank ran all of it.
    Raises ValueError if the GPUs of a rank cannot be divided among the devices of its pipeline.
    """
    stages = plan.stages
    devices = stages.num_devices
    if cluster.gpus_per_rank % devices:
        raise ArgumentError(
            "gpus_per_rank", f"be a multiple of {devices}, the devices of {{stages}}: a rank has all of them",
            cluster.gpus_per_rank,
        )  # fmt: skip
    parts = [_Split.of(name, plan, stages, found[name], models[name]) for name in stages.phases]
    units = max(1.0, sum(float(part.units.sum()) for part in parts))
    per_unit = devices * sum(float(part.seconds.sum()) for part in parts) / units
    runs_op = np.arange(2 * stages.num_stages) < stages.num_stages
    runs_op[stages.num_stages + stages.forward_only :] = True
    durations = np.sum([devices * part.seconds[:, :, None] * part.share for part in parts], axis=0)
    durations += stages.overhead * per_unit * runs_op
    if stages.tied:
        durations = np.broadcast_to(durations.max(axis=0), durations.shape)
    held = np.sum([part.kept[:, :, None] * part.share[:, :, : stages.num_stages] for part in parts], axis=0)
    working = np.maximum.reduce([models[name].working_bytes * found[name].tokens for name in stages.phases]).max(axis=1)
    runs = [
        stages.run_seconds(each, stages.hop * per_unit, np.rint(bytes_).astype(np.int64))
        for each, bytes_ in zip(durations, held, strict=True)
    ]
    ends = np.array([run.makespan for run in runs])
    slowest = int(np.argmax(ends))
    most = max(int(run.in_flight.max()) + float(at_work) for run, at_work in zip(runs, working, strict=True))
    return Pipelined(
        {name: part.computed for name, part in zip(stages.phases, parts, strict=True)}, float(ends.max()) / 1e9,
        most * devices, slowest, runs[slowest],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Split:
    """A phase in its stages: seconds of its forward by slot, and how long each op takes of that."""

    # float64[R, K]: of the forward on all GPUs of a rank; that in the unit of the stages' times; bytes kept for the
    # backward
    seconds: Floats
    units: Floats
    kept: Floats
    share: Floats  # float64[R, K, 2 S]
    computed: Computed

    @classmethod
    def of(cls, name: str, plan: PipelinePlan, stages: PipelineStages, found: Computed, model: PhaseModel) -> "_Split":
        """Split a phase as its modules' work is."""
        phase = stages.phases.index(name)
        units = plan.work_of_slots[:, :, phase, None] * stages.both_ways[phase].astype(np.float64)
        forward = units[:, :, : stages.num_stages].sum(axis=2)
        share: Floats = units / np.maximum(forward, 1)[:, :, None]
        passes = _PASSES * model.executed.a / model.useful.a
        both = units.sum() / max(1.0, float(forward.sum()))  # forward and backward, over the forward
        rerun = (passes - _PASSES) * (both > 1)
        computed = replace(
            found, seconds=found.seconds / passes * share.sum(axis=2),
            useful_flops=found.useful_flops * (both - rerun) / _PASSES,
            executed_flops=found.executed_flops * both / passes,
        )  # fmt: skip
        kept = np.asarray(model.kept_bytes * found.tokens, dtype=np.float64)
        return cls(found.seconds / passes, np.asarray(forward, dtype=np.float64), kept, share, computed)
