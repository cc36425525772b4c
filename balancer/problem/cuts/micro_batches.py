"""Micro-batches: how a rank's share is cut into slots under a token cap, and where the ranks wait for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import lcm
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.described import Count, Flag, Size, described, key, one_of, settle, whole
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import MAX_TOKENS, Constraints, not_taken
from balancer.problem.cuts.cut import Cut, ItemsOfPhase
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.limits import CountLimit, Limit, Limits
from balancer.problem.smallest_cap import check_cap, check_longest, needed
from balancer.problem.step_times import StepTimes, TimedStep
from balancer.problem.topology import Topology
from solvers.arguments import INT64_MAX
from solvers.errors import (
    ArgumentError,
    ArgumentTypeError,
    InfeasibilityCertificate,
    InfeasibleError,
    Named,
    SolverError,
    UsageError,
    Wording,
)
from solvers.groups import group_loads
from solvers.packing import SYNCS, price_tokens, rests_of_slots, slots_for, taken_tokens

OVER_LONG = ("error", "own")
"""What happens to a sample over the cap; see :class:`MicroBatches`."""

DEALT = ("equal_counts", MAX_TOKENS, "min_samples_per_rank", "max_samples_per_rank", "caps")
"""Constraints that only count or add up what a rank holds: ranks keep to them by which micro-batches they get."""

ENCODERS = ("slot", "step")
"""When encoders compute an item: in the slot of its sample, or before the first micro-batch of the step."""

MOST_SLOTS = 2**20
"""Micro-batches of a rank that may be asked for: empty ones are written down too."""

MOST_SLOTS_OF_STAGES = 2**12
"""Those with `stages`: the program behind a ramp takes the square of their number in memory."""


# Tokens of a micro-batch that its bytes cap, not their number. Files keep it as JSON, whose readers may take floats.
_ANY_SIZE = 2**53

PACKING = Wording({
    "cap": "cut.tokens", "tokens": "length", "num_slots": "cut.count", "min_slots": "cut.at_least",
    "slots_multiple_of": "cut.multiple_of", "slots": "micro-batches", "item": "sample", "items": "samples",
    "sizes": "lengths", "in_flight_cap": "in_flight_tokens", "num_replicas": "num_ranks",
})  # fmt: skip
"""The arguments of :mod:`solvers.packing` and :mod:`solvers.pipeline` under the names of the fields that set them."""


Slots = Annotated[int, whole(1, MOST_SLOTS)]
SlotsOrFewest = Annotated[int | str, whole(1, MOST_SLOTS).or_word("fewest")]
OverLong = Annotated[str, one_of(*OVER_LONG)]
Encoders = Annotated[str, one_of(*ENCODERS)]


@described
class InSlots(Cut):
    """What micro-batches have in common, whether a pipeline runs them or not."""

    tokens: Size = key("Elements of a micro-batch at most.")
    count: SlotsOrFewest | None = key(
        'How many micro-batches a rank, or "fewest"; by default the fastest.', default=None, kw_only=True
    )
    at_least: Slots = key("At least so many micro-batches a rank.", default=1, kw_only=True)
    multiple_of: Slots = key("Their number is a multiple of this.", default=1, kw_only=True)
    allow_empty: Flag = key("A micro-batch may hold nothing.", default=False, kw_only=True)
    over_long: OverLong = key("A row over the cap: error, or own.", default=OVER_LONG[0], kw_only=True)
    encoders: Encoders = key(
        "Encoders compute in a sample's micro-batch (slot), or before (step).", default=ENCODERS[0], kw_only=True
    )


@described
class MicroBatches(InSlots):
    """What every rank's micro-batches must keep to.

    Attributes
    ----------
    tokens : int
        No micro-batch holds more elements.
    sync : str
        ``"micro_batch"``: ranks wait in every micro-batch, as with FSDP; a step takes the sum over slots of the
        slowest rank. ``"step"``: ranks wait once a step; it takes the largest sum of a rank. ``"pipeline"``: with
        `stages` a step takes exactly as long as the longest pipeline run; with only `pipeline_stages`
        (K + pipeline_stages - 1) times the largest micro-batch. If unsure, choose micro_batch: its plans are nearly as
        even if ranks wait once a step, but plans for ``"step"`` may take twice as long where they wait in each.
    count : int, "fewest" or None
        K, the same on all ranks; None: the fastest. At most 2**20, with `stages` 4,096.
    at_least, multiple_of : int
        The least K, and a number that K must be a multiple of.
    limits : sequence of Limit, CountLimit, PaddedLimit, Kinds, Everywhere
        What each micro-batch keeps to besides `tokens`. The longest samples then share no tall slots that other limits
        forbid; micro-batches are moved between ranks whole.
    pipeline_stages : int
        Stages of the pipeline, if nothing more is known of them; 1 for the other schedules.
    stages : PipelineStages or None
        The times of each stage of the pipeline. The order of micro-batches is then planned too: small ones first and
        last.
    allow_empty : bool
        Whether a micro-batch may hold nothing.
    over_long : str
        A sample over the cap is an ``"error"``, or gets a micro-batch of its ``"own"``. To train without such samples,
        leave them out beforehand: ``lengths <= tokens``.
    encoders : str
        For several phases. ``"slot"``: an encoder computes an item in the slot of its sample, and keeps only a slot's
        activations for the backward pass. ``"step"``: encoders compute all items of the step before the first
        micro-batch. This is more even, but they keep them for the whole step; in plans they are in slot 0.
    """

    sync: Annotated[str, one_of(*SYNCS)] = key("Where ranks wait: micro_batch, step or pipeline.", default=SYNCS[0])
    pipeline_stages: Count = key("Stages of a pipeline of which no more is known.", default=1, kw_only=True)
    limits: Limits = key(
        "What else a micro-batch keeps to: tables of kind sum, count, padded, kinds or everywhere.",
        default=(), kw_only=True,
    )  # fmt: skip
    stages: PipelineStages | None = field(default=None, kw_only=True)  # in files made of a table of its own

    called: ClassVar[str] = "cut.tokens"

    def __post_init__(self) -> None:
        settle(self, "cut")
        if isinstance(self.count, int) and (self.count < self.at_least or self.count % self.multiple_of):
            other = "at_least" if self.count < self.at_least else "multiple_of"
            raise UsageError(
                f"{{cut.count}} = {{count}} contradicts {{cut.{other}}} = {{limit}}",
                count=self.count, limit=getattr(self, other),
            )  # fmt: skip
        if self.pipeline_stages > 1 and self.sync != "pipeline":
            raise UsageError(
                "{pipeline_stages} = {stages} contradicts {cut.sync} = {given!r}: only 'pipeline' has stages",
                stages=self.pipeline_stages, given=self.sync,
            )  # fmt: skip
        if self.limits and self.over_long == "own":
            raise UsageError("{over_long='own'} cannot be combined with {cut.limits}, which it would exceed")
        if self.stages is not None:
            self._check_stages()

    def _check_stages(self) -> None:
        if isinstance(self.stages, Mapping):  # from a plan file
            object.__setattr__(self, "stages", PipelineStages.from_json(self.stages))
        if not isinstance(self.stages, PipelineStages):
            raise ArgumentTypeError("stages", "be PipelineStages(...)", repr(self.stages))
        if self.limits:
            raise UsageError(
                "{stages} cannot be combined with {cut.limits}, which is not planned yet",
                "give {pipeline_stages} instead of {stages}",
            )
        if self.pipeline_stages > 1:
            raise UsageError("give {stages} or {pipeline_stages}, not both: either says how many there are")
        if self.sync != "pipeline":
            raise UsageError("{stages} contradicts {cut.sync} = {given!r}: only 'pipeline' has stages", given=self.sync)
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
    def in_gaps(cls, times: StepTimes) -> MicroBatches:
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
            _ANY_SIZE, "pipeline", at_least=times.slots, multiple_of=times.slots, allow_empty=True,
            stages=PipelineStages.of_times(times),
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Its key in the registries: without stages, with them, or with other phases in their gaps."""
        if self.stages is None:
            return "micro_batches"
        return "pipelines" if self.stages.gaps is None else "gaps"

    @property
    def features(self) -> tuple[str, ...]:
        """What plan files of them need."""
        of_ops = ("pipeline ops",) if self.stages is not None and self.stages.of_ops else ()
        named = {"micro_batches": (), "pipelines": ("pipeline stages",), "gaps": ("pipeline stages", "gaps")}
        return (*named[self.name], *of_ops)

    @property
    def meets(self) -> str:
        """Where ranks wait for each other."""
        return self.sync

    @property
    def num_stages(self) -> int:
        """Stages whose times are known."""
        return 0 if self.stages is None else self.stages.num_stages

    @property
    def num_devices(self) -> int:
        """Devices of a pipeline whose times are known."""
        return 0 if self.stages is None else self.stages.num_devices

    @property
    def encoders_in_stages(self) -> bool:
        """Whether encoders are first stages of the pipelines."""
        return self.stages is not None and self.encoders == "slot"

    @property
    def fills_gaps(self) -> bool:
        """Whether other phases run in the gaps of the pipelines."""
        return self.stages is not None and self.stages.gaps is not None

    def check_settings(self, method: str, group_size: int | None) -> None:
        """Raise ValueError if no micro-batches are made so."""
        check_slots_planned(self, "micro-batches", method, group_size)

    def check_phases(self, names: Sequence[str]) -> None:
        """Raise ValueError unless stages are those of these phases, or of the last where others come before."""
        if self.stages is not None:
            self.stages.check_phases(names if self.encoders == "slot" else names[-1:])

    def check_ranks(self, topology: Topology) -> None:
        """Raise ValueError unless there are as many ranks as times in gaps are of, if they are of some."""
        if self.stages is not None:
            self.stages.check_replicas(topology.num_ranks)

    def check_layouts(self, num_phases: int) -> None:
        """Raise ValueError if encoders are stages, which have no layout of their own."""
        if self.encoders_in_stages and num_phases > 1:
            raise UsageError(
                "{stages} that encoders are part of cannot be combined with {layouts}, in which encoders run before "
                "the pipeline", "use {encoders='step'}",
            )  # fmt: skip

    def check(self, cost: CostModel, constraints: Sequence[str], topology: Topology) -> None:
        """Raise ValueError if micro-batches cannot have this cost or these constraints."""
        self._check(cost, constraints)

    def check_encoder(self, cost: CostModel, constraints: Sequence[str]) -> None:
        """Raise ValueError if an encoder in these micro-batches cannot have this cost or these constraints."""
        if self.encoders == "slot":
            check_encoder_in_slots(self, constraints)
            self._check(cost, constraints)

    def _check(self, cost: CostModel, constraints: Sequence[str]) -> None:
        check_adds_up(self, cost)
        if self.stages is not None and constraints:
            raise UsageError(
                "{stages} cannot be combined with {"
                + constraints[0]
                + "}: a replica's samples are chosen for its pipeline alone",
                "leave one of them out, or give {pipeline_stages} instead of {stages}",
            )
        if "prefix" in constraints:
            self._check_prompts(constraints)
        if any(not isinstance(limit, Limit | CountLimit) for limit in self.limits):
            self._check_dealt(constraints)
        if refused := not_taken("micro_batches", [name for name in constraints if name != "prefix_length"]):
            raise UsageError(
                "{cut.tokens} cannot be combined with {" + refused[0] + "}: ranks wait for each other in every "
                "slot, and schedules for ranks that differ are not made; leave one of them out"
            )

    def _check_dealt(self, constraints: Sequence[str]) -> None:
        """Raise ValueError for what ranks keep to that is not kept by dealing whole micro-batches to them."""
        if others := [name for name in constraints if name not in (*DEALT, "prefix_length")]:
            raise UsageError(
                "{cut.limits} other than sums and counts cannot be combined with {" + others[0] + "}, which is not "
                "planned yet", "leave one of them out",
            )  # fmt: skip

    def _check_prompts(self, constraints: Sequence[str]) -> None:
        """Raise ValueError for micro-batches in which no prompt can be shared."""
        unlike = {
            "{cut.sync='pipeline'}": self.sync == "pipeline",
            "{over_long='own'}": self.over_long == "own",
            "{equal_counts}": "equal_counts" in constraints,
            "{cut.limits}": bool(self.limits),
        }  # fmt: skip
        for what, asked in unlike.items():
            if asked:
                raise UsageError(
                    f"{{prefix}} in {{cut.tokens}} cannot be combined with {what}, which is not planned yet",
                    "leave one of them out",
                )  # fmt: skip

    def check_batch(self, batch: GlobalBatch, num_ranks: int, constraints: Constraints, cost: CostModel) -> None:
        """Raise InfeasibleError if a sample is too long for a micro-batch or a device, or all are too many."""
        check_cap(batch, num_ranks, constraints, cost)
        if self.over_long != "error":
            return
        self._check_longest(batch)
        if self.stages is not None and self.stages.in_flight_tokens is not None:
            check_longest(batch, "in_flight_tokens", self.stages.in_flight_tokens, "every device holds it at some time")

    def _check_longest(self, batch: GlobalBatch) -> None:
        cap, over = self.tokens, np.flatnonzero(batch.lengths > self.tokens)
        if not len(over):
            return
        sample = int(np.argmax(batch.lengths))
        longest, them, each = int(batch.lengths[sample]), "it", "it"
        what = f"{{sample}} of length {longest} is longer than {{cut.tokens}} = {cap}"
        if len(over) > 1:
            them, each = "them", "each"
            what = (
                f"{len(over)} {{samples}} are longer than {{cut.tokens}} = {cap} (the longest, {{sample}}: {longest})"
            )
        raise InfeasibleError(
            what,
            InfeasibilityCertificate("cut.tokens", over.tolist(), [], longest, cap),
            [
                f"leave {them} out beforehand (lengths <= {cap})", "raise the cap",
                f"{{over_long='own'}} gives {each} a micro-batch of its own",
            ],
            sample=Named("sample", sample),
        )  # fmt: skip

    def check_deferral(self) -> None:
        """Raise ValueError for encoders in gaps."""
        if self.fills_gaps:
            raise UsageError("{defer} and {step_tokens} cannot be combined with encoders in gaps")

    def least_work(
        self, cost: CostModel, lengths: NDArray[np.int64], num_ranks: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return each sample's work, and its time; in a pipeline it passes all stages."""
        if self.stages is not None and len(self.stages.forward) == 1:
            (name,) = self.stages.forward
            return self.stages.least_work({name: (cost, lengths, np.arange(len(lengths)))}, len(lengths))
        costs = cost.sample_costs(lengths)
        return costs, None if self.sync != "pipeline" else self.pipeline_stages * costs

    def least_work_together(
        self, items: Mapping[str, ItemsOfPhase], num_samples: int
    ) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]] | None:
        """Return those of pipelines that encoders are first stages of."""
        if self.stages is None or len(self.stages.forward) == 1:
            return None
        return tuple(self.stages.forward), *self.stages.least_work(items, num_samples)

    def work(self, items: Mapping[str, ItemsOfPhase], num_samples: int) -> NDArray[np.int64] | TimedStep | None:
        """Return each sample's work in the modules of the pipelines, and the tasks in their gaps."""
        return None if self.stages is None else self.stages.work_and_tasks(items, num_samples)

    def cap_on_tokens(self, num_ranks: int) -> tuple[str, int, int | None] | None:
        """Return the cap on a micro-batch, if every sample must keep to it."""
        if self.over_long != "error":
            return None
        return "{cut.tokens}", self.tokens, num_ranks * self.count if isinstance(self.count, int) else None

    @property
    def tokens_of_slot(self) -> int | None:
        """The cap on a micro-batch."""
        return self.tokens

    def of_encoder(self, num_slots: int, num_elements: int) -> MicroBatches:
        """Return an encoder's: possibly empty, and of any size; no ranks meet in the slots of a pipeline."""
        sync = "step" if self.encoders_in_stages else "micro_batch"
        return MicroBatches(max(1, num_elements), sync, count=num_slots, allow_empty=True)

    def kept_by_encoder(self, constraints: Constraints) -> Constraints:
        """Return where items may run, if slots say when: what a rank holds over the step is not planned then."""
        return Constraints(allowed_ranks=constraints.allowed_ranks) if self.encoders == "slot" else constraints

    def with_costs(self, costs: Mapping[str, CostModel]) -> MicroBatches:
        """Return the same with stages whose work costs this."""
        return self if self.stages is None else replace(self, stages=replace(self.stages, costs=costs))

    def slots_for(self, used: int) -> int:
        """Return K, given that the `used`-th micro-batch is the last that holds anything on any rank.

        A plan's rows do not show the empty ones behind it: there are as many as the rules on K need.
        """
        if isinstance(self.count, int):
            return max(self.count, used)
        return slots_for(used, self.at_least, self.multiple_of)

    def solver_keywords(self) -> dict[str, Any]:
        """Return these as :func:`solvers.packing.schedule_micro_batches` takes them."""
        return {
            "cap": self.tokens,
            "sync": self.sync,
            "num_slots": self.count,
            "min_slots": self.at_least,
            "slots_multiple_of": self.multiple_of,
            "stages": self.pipeline_stages,
            "allow_empty": self.allow_empty,
            "over_long": self.over_long,
        }

    def explained(self, error: SolverError, lengths: NDArray[np.int64], num_ranks: int) -> SolverError:
        """Return an error of the solvers in the names of these fields, with the cap that would do."""
        too_few = getattr(getattr(error, "certificate", None), "constraint", None) == "num_slots"
        if too_few and isinstance(self.count, int) and self.over_long != "own":
            what = f"with {{cut.count}} = {self.count} {{cut.tokens}}"
            error = error.with_remedy(needed(what, lengths, num_ranks * self.count, self.tokens))
        return error.in_words(PACKING)

    def to_json(self) -> dict[str, Any]:
        """Return them as plan files hold them."""
        of_stages = {} if self.stages is None else {"stages": self.stages.to_json()}
        return super().to_json() | of_stages

    def in_words(self) -> str:
        """Say what they are, for a report."""
        how = f"sync {self.sync}" if self.stages is None else self.stages.in_words()
        if self.stages is not None and self.stages.gaps is not None:
            return f"micro-batches within the memory of the layout, {how}"
        kept = "".join(f", {limit.in_words()}" for limit in self.limits)
        return f"micro-batches of at most {self.tokens:,}{kept}, {how}"

    def makespan(self, slot_loads: NDArray[np.int64]) -> int:
        """Return what a step takes in cost units, from the cost of each micro-batch, int64[ranks, K].

        With `stages`: in units of their times, from the work of each micro-batch in each module, int64[ranks, K, M].
        """
        return int(self.span(slot_loads)) if self.stages is None else int(self.stages.makespans(slot_loads).max())

    def span(self, slots: NDArray[np.int64] | NDArray[np.float64]) -> float:
        """Return what a step takes from what each micro-batch takes, [ranks, K]: an int of integers."""
        taken: float
        if self.sync == "step":
            taken = slots.sum(axis=1).max().item()
        elif self.sync == "micro_batch":
            taken = slots.max(axis=0).sum().item()
        else:
            taken = (slots.shape[1] + self.pipeline_stages - 1) * slots.max().item()
        return taken

    def held_by_a_rank(
        self, costs: NDArray[np.int64], tokens: NDArray[np.int64], makespan: int, num_ranks: int, num_slots: int
    ) -> tuple[NDArray[np.int64], int]:
        """Return a cost of samples, and how much of it a rank holds at most in a step of no more than `makespan`."""
        cap = self.tokens
        if self.sync == "micro_batch":
            rests = rests_of_slots(costs, tokens, makespan, num_ranks, num_slots, cap)
        elif self.sync == "pipeline":
            each = makespan // (num_slots + self.pipeline_stages - 1)
            rests = [each * slots for slots in range(num_slots, 0, -1)]
        else:
            rests = [makespan]
        priced = price_tokens(costs, tokens, rests, num_ranks, cap)
        return priced.costs, min(priced.most, INT64_MAX)

    def taken_tokens(
        self, costs: NDArray[np.int64], lengths: NDArray[np.int64], makespan: int, num_slots: int
    ) -> NDArray[np.int64]:
        """Return what samples take of the tokens of a rank's micro-batches in a step of no more than `makespan`."""
        tokens = np.minimum(lengths, self.tokens)
        if self.sync != "pipeline" or self.stages is not None:
            return tokens
        return taken_tokens(costs, tokens, makespan // (num_slots + self.pipeline_stages - 1), self.tokens)

    def perfect(self, total: int, num_ranks: int, num_slots: int) -> tuple[int, int]:
        """Return what a perfectly even step would take, as a fraction: numerator and denominator."""
        if self.sync == "pipeline":
            return (num_slots + self.pipeline_stages - 1) * total, num_ranks * num_slots
        return total, num_ranks

    def violation(
        self, lengths: NDArray[np.int64], rank: NDArray[np.int32], slot: NDArray[np.int32], num_ranks: int, slots: int
    ) -> str | None:
        """Say which rule micro-batches break first; None if they keep to all."""
        bins = (rank.astype(np.int64) * slots + slot).astype(np.int32)
        tokens, counts = group_loads(lengths, bins, num_ranks * slots), np.bincount(bins, minlength=num_ranks * slots)
        over = tokens > self.tokens
        if self.over_long == "own":
            over &= counts > 1
        if over.any():
            first = int(np.argmax(over))
            where = f"micro-batch {first % slots} of rank {first // slots}"
            return f"{where} holds {tokens[first]} tokens, cap {self.tokens}"
        if not self.allow_empty and len(lengths) and counts.min() == 0:
            first = int(np.argmin(counts))
            return f"micro-batch {first % slots} of rank {first // slots} is empty"
        if slots < self.at_least or slots % self.multiple_of or (isinstance(self.count, int) and slots != self.count):
            return f"there are {slots} micro-batches a rank, which is not what was asked for"
        return None if self.stages is None else self._over_in_flight(tokens.reshape(num_ranks, slots), self.stages)

    def _over_in_flight(self, tokens: NDArray[np.int64], stages: PipelineStages) -> str | None:
        if (most := stages.in_flight_tokens) is None:
            return None
        for rank, sizes in enumerate(tokens):
            # With no work at all: what is in flight follows from the order of ops, whatever these take.
            held = stages.run(np.zeros((len(sizes), len(stages.forward)), dtype=np.int64), sizes).in_flight
            if held.max() > most:
                device = int(np.argmax(held > most))
                return f"device {device} of rank {rank} has {held[device]} tokens in flight, cap {most}"
        return None


def check_adds_up(cut: Cut, cost: CostModel) -> None:
    """Raise ValueError if what a slot costs is not the sum of what its samples do."""
    if not cost.additive:
        raise UsageError(
            "{" + cut.called + "} cannot be combined with cost '{cost}': what a padded row costs depends on the rows "
            "beside it; use a cost that adds up",
            cost=cost,
        )  # fmt: skip


def check_encoder_in_slots(cut: Cut, constraints: Sequence[str]) -> None:
    """Raise ValueError if an encoder whose items are in the slots of their samples is to keep to more than where."""
    if held := not_taken("slot", constraints):
        raise UsageError(
            f"{{{cut.called}}} cannot be combined with {{{held[0]}}} of an encoder that computes an item in the slot "
            "of its sample: what a rank has over the step is then not the encoder's to choose",
            "use {encoders='step'}",
        )


def check_slots_planned(cut: Cut, what: str, method: str, group_size: int | None) -> None:
    """Raise ValueError if slots are asked for by a partition method, or within groups of ranks."""
    if method != "auto":
        raise UsageError("method {asked!r} makes no " + what + "; use 'auto'", asked=method)
    if group_size is not None:
        raise UsageError(
            f"{{{cut.called}}} cannot be combined with {{group_size}}: all ranks need one number of micro-batches, on "
            "which groups that plan by themselves do not agree"
        )
