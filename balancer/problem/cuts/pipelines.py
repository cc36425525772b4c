"""Pipelines: each rank is a replica, whose micro-batches run one after another through the stages of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import lcm
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.described import described
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import Constraints
from balancer.problem.cuts.cut import ItemsOfPhase
from balancer.problem.cuts.in_slots import InSlots, check_adds_up
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.smallest_cap import check_longest
from balancer.problem.step_times import StepTimes, TimedStep
from balancer.problem.topology import Topology
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError
from solvers.groups import group_loads

MOST_SLOTS_OF_STAGES = 2**12
"""Micro-batches of a rank: the program behind a ramp takes the square of their number in memory."""

# Tokens of a micro-batch that its bytes cap, not their number. Files keep it as JSON, whose readers may take floats.
_ANY_SIZE = 2**53


Ints = NDArray[np.int64]


@described
class Pipelines(InSlots):
    """Micro-batches that run through the stages of a pipeline, whose times are known. Their order is planned too.

    A step takes exactly as long as the longest pipeline run, with small micro-batches first and last. Of a pipeline of
    which only the number of stages is known: ``MicroBatches(tokens, "pipeline", pipeline_stages=8)``.

    Attributes
    ----------
    tokens : int
        No micro-batch holds more elements.
    stages : PipelineStages
        What each stage takes: :meth:`balancer.PipelineStages.of`. With several phases encoders are its first stages, or
        with ``encoders="step"`` compute all items of the step before it.
    count, at_least, multiple_of, allow_empty, over_long, encoders
        As :class:`balancer.MicroBatches` has them; at most 4,096 micro-batches.

    Examples
    --------
    >>> Pipelines(8192, PipelineStages.of({"vision": 1, "llm": 3})).in_words()
    'micro-batches of at most 8,192, 4 pipeline stages, 1F1B'
    """

    stages: PipelineStages = field(default=None)  # type: ignore[assignment]  # in files made of a table of its own

    sync: ClassVar[str] = "pipeline"
    meets: ClassVar[str] = "pipeline"

    def __post_init__(self) -> None:
        InSlots.__post_init__(self)
        if isinstance(self.stages, Mapping):  # from a plan file
            object.__setattr__(self, "stages", PipelineStages.from_json(self.stages))
        if not isinstance(self.stages, PipelineStages):
            raise ArgumentTypeError("stages", "be PipelineStages, such as PipelineStages.of(4)", repr(self.stages))
        for name in ("count", "at_least", "multiple_of"):
            if isinstance(slots := getattr(self, name), int) and slots > MOST_SLOTS_OF_STAGES:
                raise ArgumentError(f"cut.{name}", f"be <= {MOST_SLOTS_OF_STAGES} with {{stages}}", slots)
        # Interleaved stages take micro-batches by turns of as many as there are devices.
        devices = self.stages.num_devices if self.stages.chunks > 1 else 1
        if isinstance(self.count, int) and self.count % devices:
            raise ArgumentError("cut.count", f"be a multiple of the {devices} devices of {{stages}}", self.count)
        object.__setattr__(self, "multiple_of", lcm(self.multiple_of, devices))
        if self.over_long == "own" and self.stages.in_flight_tokens is not None:
            raise UsageError("{over_long='own'} cannot be combined with {in_flight_tokens}, which it would exceed")

    @classmethod
    def in_gaps(cls, times: StepTimes) -> Pipelines:
        """Return those of a layout whose encoders run in the gaps of its pipeline, within its memory.

        There are as many as the layout has, or twice as many, and so on, in a step that would not fit.
        ``configure(...).winner.layout.times`` is what it takes, of mode ``"multiplexed"``.
        """
        if not isinstance(times, StepTimes):
            raise ArgumentTypeError(
                "times", "be those of a layout of mode 'multiplexed' that configure found", repr(times)
            )
        if not times.encoders:
            raise UsageError("a plan says what encoders do in gaps, and these {times} have none")
        if times.slots > MOST_SLOTS_OF_STAGES:
            raise ArgumentError("cut.count", f"be <= {MOST_SLOTS_OF_STAGES} where encoders run in gaps", times.slots)
        return cls(
            _ANY_SIZE, PipelineStages.of_times(times), at_least=times.slots, multiple_of=times.slots, allow_empty=True
        )

    @property
    def name(self) -> str:
        """Its key in the registries: whether other phases run in their gaps."""
        return "gaps" if self.fills_gaps else "pipelines"

    @property
    def num_stages(self) -> int:
        """Stages of a pipeline."""
        return self.stages.num_stages

    @property
    def num_devices(self) -> int:
        """Devices of a pipeline."""
        return self.stages.num_devices

    @property
    def encoders_in_stages(self) -> bool:
        """Whether encoders are first stages of the pipelines."""
        return self.encoders == "slot"

    @property
    def fills_gaps(self) -> bool:
        """Whether other phases run in the gaps of the pipelines."""
        return self.stages.gaps is not None

    # What goes together

    def check_phases(self, names: Sequence[str]) -> None:
        """Raise ValueError unless stages are those of these phases, or of the last where others come before."""
        self.stages.check_phases(names if self.encoders == "slot" else names[-1:])

    def check_ranks(self, topology: Topology) -> None:
        """Raise ValueError unless there are as many ranks as times in gaps are of, if they are of some."""
        self.stages.check_replicas(topology.num_ranks)

    def _check(self, cost: CostModel, constraints: Sequence[str]) -> None:
        check_adds_up(self, cost)
        if constraints:
            raise UsageError(
                "{stages} cannot be combined with {"
                + constraints[0]
                + "}: a replica's samples are chosen for its pipeline alone",
                "leave one of them out, or give {pipeline_stages} instead of {stages}",
            )

    def check_batch(self, batch: GlobalBatch, num_ranks: int, constraints: Constraints, cost: CostModel) -> None:
        """Raise InfeasibleError if a sample is too long for a micro-batch or a device."""
        InSlots.check_batch(self, batch, num_ranks, constraints, cost)
        if self.over_long == "error" and self.stages.in_flight_tokens is not None:
            check_longest(batch, "in_flight_tokens", self.stages.in_flight_tokens, "every device holds it at some time")

    def check_deferral(self) -> None:
        """Raise ValueError for encoders in gaps."""
        if self.fills_gaps:
            raise UsageError("{defer} and {step_tokens} cannot be combined with encoders in gaps")

    # What it makes of samples

    def work(self, items: Mapping[str, ItemsOfPhase], num_samples: int) -> Ints | TimedStep | None:
        """Return each sample's work in the modules of the pipelines, and the tasks in their gaps."""
        return self.stages.work_and_tasks(items, num_samples)

    def least_work(self, cost: CostModel, lengths: Ints, num_ranks: int) -> tuple[Ints, Ints | None]:
        """Return each sample's work, and its time: it passes all stages."""
        if len(self.stages.forward) > 1:
            costs = cost.sample_costs(lengths)
            return costs, costs
        (name,) = self.stages.forward
        return self.stages.least_work({name: (cost, lengths, np.arange(len(lengths)))}, len(lengths))

    def least_work_together(
        self, items: Mapping[str, ItemsOfPhase], num_samples: int
    ) -> tuple[tuple[str, ...], Ints, Ints] | None:
        """Return those of pipelines that encoders are first stages of."""
        if len(self.stages.forward) == 1:
            return None
        return tuple(self.stages.forward), *self.stages.least_work(items, num_samples)

    def makespan(self, slot_loads: Ints) -> int:
        """Return when the last pipeline ends, in units of its stages' times.

        From the work of each micro-batch in each module, int64[ranks, K, M].
        """
        return int(self.stages.makespans(slot_loads).max())

    def taken_tokens(self, costs: Ints, lengths: Ints, makespan: int, num_slots: int) -> Ints:
        """Return what samples take of the tokens of a rank's micro-batches."""
        return np.minimum(lengths, self.tokens)

    def span(self, slots: Ints | NDArray[np.float64]) -> float:
        """Return what a step takes where only what each micro-batch takes is known, [ranks, K]: an int of integers."""
        taken: float = slots.shape[1] * slots.max().item()
        return taken

    def violation(
        self, lengths: Ints, rank: NDArray[np.int32], slot: NDArray[np.int32], num_ranks: int, slots: int
    ) -> str | None:
        """Say which rule micro-batches break first; None if they keep to all."""
        if broken := InSlots.violation(self, lengths, rank, slot, num_ranks, slots):
            return broken
        if (most := self.stages.in_flight_tokens) is None:
            return None
        bins = (rank.astype(np.int64) * slots + slot).astype(np.int32)
        for each, sizes in enumerate(group_loads(lengths, bins, num_ranks * slots).reshape(num_ranks, slots)):
            # With no work at all: what is in flight follows from the order of ops, whatever these take.
            held = self.stages.run(np.zeros((slots, len(self.stages.forward)), dtype=np.int64), sizes).in_flight
            if held.max() > most:
                device = int(np.argmax(held > most))
                return f"device {device} of rank {each} has {held[device]} tokens in flight, cap {most}"
        return None

    # Other cuts that follow from it

    def of_encoder(self, num_slots: int, num_elements: int) -> MicroBatches:
        """Return an encoder's: possibly empty, and of any size; no ranks wait in the slots of a pipeline."""
        sync = "step" if self.encoders_in_stages else "micro_batch"
        return MicroBatches(max(1, num_elements), sync, count=num_slots, allow_empty=True)

    def with_costs(self, costs: Mapping[str, CostModel]) -> Pipelines:
        """Return the same with stages whose work costs this."""
        return replace(self, stages=replace(self.stages, costs=costs))

    # Words and files

    def to_json(self) -> dict[str, Any]:
        """Return them as plan files hold them."""
        return InSlots.to_json(self) | {"stages": self.stages.to_json()}

    def in_words(self) -> str:
        """Say what they are, for a report."""
        if self.fills_gaps:
            return f"micro-batches within the memory of the layout, {self.stages.in_words()}"
        return f"micro-batches of at most {self.tokens:,}, {self.stages.in_words()}"
