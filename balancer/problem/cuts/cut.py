"""What every cut can be asked, and whole shares, which is what a cut answers that does not override it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.described import as_dict, described
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import Constraints
from balancer.problem.limits import AnyLimit
from balancer.problem.smallest_cap import check_cap
from balancer.problem.step_times import TimedStep
from balancer.problem.topology import Topology
from solvers.errors import UsageError

Ints = NDArray[np.int64]

ItemsOfPhase = tuple[CostModel, Ints, Ints]
"""Of a phase: its cost, the length of each item, and the sample that each is of."""


class Cut:
    """How a step is cut, as a caller asks for it.

    How it is planned and what comes out stand in :data:`balancer.cuts.rooms.ROOMS`, of which :attr:`name` is the key.
    A cut is a frozen dataclass.
    """

    __slots__ = ()

    holder: ClassVar[str] = "rank"
    """Who computes a sample, of whom each has a fair share."""

    shares: ClassVar[bool] = False
    """Whether ranks share samples."""

    strategies: ClassVar[tuple[str, ...]] = ()
    """Names of strategies whose ranks share samples so, what is asked for last; there are others of whole samples."""

    own_slots: ClassVar[bool] = False
    """Whether an encoder cut so has slots of its own, all before the first micro-batch."""

    @property
    def name(self) -> str:
        """Its key in the registries."""
        raise NotImplementedError

    @property
    def called(self) -> str:
        """The argument by which callers ask for it."""
        return "cut"

    @property
    def sync(self) -> str:
        """Where ranks wait for each other: a name in ``solvers.packing.SYNCS``."""
        return "step"

    @property
    def pipeline_stages(self) -> int:
        """Micro-batches that are under way at a time."""
        return 1

    @property
    def over_long(self) -> str:
        """What happens to samples over a cap of the cut's own: one of :data:`OVER_LONG`, there too."""
        return "error"

    @property
    def limits(self) -> Sequence[AnyLimit]:
        """What a micro-batch keeps to besides its tokens."""
        return ()

    @property
    def encoders(self) -> str:
        """Where other phases compute their items.

        In the ``"slot"`` of their sample, before the first slot of the ``"step"``, or ``"first"``: samples then come to
        ranks by where their parts are.
        """
        return "first"

    @property
    def meets(self) -> str:
        """Where ranks wait for each other within a step, in a word or two; nothing where they do not."""
        return ""

    @property
    def num_devices(self) -> int:
        """Devices of a pipeline; 0 where there is none, or nothing is known of it."""
        return 0

    @property
    def num_stages(self) -> int:
        """Stages of the pipelines whose exact runs a plan has; 0 if it has none."""
        return 0

    @property
    def encoders_in_stages(self) -> bool:
        """Whether other phases compute an item on the replica of its sample, in its slot."""
        return False

    @property
    def fills_gaps(self) -> bool:
        """Whether other phases run in the gaps of pipelines."""
        return False

    # What goes together

    def check_settings(self, method: str, group_size: int | None) -> None:
        """Raise ValueError if no plan is made so by a partition method, or within groups of ranks."""

    def check_phases(self, names: Sequence[str]) -> None:
        """Raise ValueError unless a step of these phases can be cut so, the last of which is."""

    def check_ranks(self, topology: Topology) -> None:
        """Raise ValueError if these ranks cannot be planned so."""

    def check(self, cost: CostModel, constraints: Sequence[str], topology: Topology) -> None:
        """Raise ValueError if what is cut cannot have this cost, these constraints (by name) or ranks."""

    def check_encoder(self, cost: CostModel, constraints: Sequence[str]) -> None:
        """Raise ValueError if another phase of the step cannot have this cost or these constraints."""

    def check_batch(self, batch: GlobalBatch, num_ranks: int, constraints: Constraints, cost: CostModel) -> None:
        """Raise InfeasibleError if samples are too long, or too many for a cap on ranks."""
        if constraints.max_tokens_per_rank is not None:
            check_cap(batch, num_ranks, constraints, cost)

    def check_deferral(self) -> None:
        """Raise ValueError unless what a step takes at least follows from :meth:`least_work` of its samples alone."""
        raise UsageError("{defer} and {step_tokens} are not for {cut}", cut=self.name.replace("_", " "))

    # What it makes of samples

    def work(self, items: Mapping[str, ItemsOfPhase], num_samples: int) -> Ints | TimedStep | None:
        """Return what plans use instead of costs of samples: work in each module, and work in gaps."""
        return None

    def least_work(self, cost: CostModel, lengths: Ints, num_ranks: int) -> tuple[Ints, Ints | None]:
        """Return the work that each sample is at least, of all ranks, and the least time of a step with it: int64[n].

        None instead of times if one rank does all of a sample.
        """
        return cost.sample_costs(lengths), None

    def least_work_together(
        self, items: Mapping[str, ItemsOfPhase], num_samples: int
    ) -> tuple[tuple[str, ...], Ints, Ints] | None:
        """Return the same of phases that a sample passes one after the other, and which these are; None if each waits.

        Work is then that of the part of a rank that is busiest, time the way through all phases: int64[n] each.
        """
        return None

    def cap_on_tokens(self, num_ranks: int) -> tuple[str, int, int | None] | None:
        """Return a cap that no sample may exceed: its name, its value, how many bins have it (None: any number)."""
        return None

    @property
    def tokens_of_slot(self) -> int | None:
        """The most that a rank holds in a slot, samples apart that are over it by themselves; None: any number."""
        return None

    # What plans of it have

    def slots_for(self, used: int) -> int:
        """Return the number of slots, given that the `used`-th is the last that holds anything on any rank."""
        return used

    def rank_sets(self, topology: Topology) -> Iterator[range]:
        """Yield all sets of ranks that any plan can need as a group of more than one."""
        yield from ()

    def span(self, slots: Ints | NDArray[np.float64]) -> float:
        """Return what a step takes from what each slot takes, [ranks, K]: an int of integers."""
        taken: float = slots.sum(axis=1).max().item()
        return taken

    def violation(
        self, lengths: Ints, rank: NDArray[np.int32], slot: NDArray[np.int32], num_ranks: int, slots: int
    ) -> str | None:
        """Say which rule slots break first; None if they keep to all."""
        return "has micro-batch slots, which its description does not mention" if slot.any() else None

    # Other cuts that follow from it

    def of_encoder(self, num_slots: int, num_elements: int) -> Cut:
        """Return that of another phase in a step of so many slots, of so many elements in all."""
        return WHOLE_SHARES

    def kept_by_encoder(self, constraints: Constraints) -> Constraints:
        """Return those of another phase's constraints that its plan can keep to."""
        return constraints

    def of_whole_samples(self) -> Cut:
        """Return that of ranks which do not share samples."""
        return self

    def with_costs(self, costs: Mapping[str, CostModel]) -> Cut:
        """Return the same where phases cost something else."""
        return self

    # Words and files

    def in_words(self) -> str:
        """Say what it is, for a report; nothing of whole shares."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plan files hold it; :func:`balancer.problem.cuts.cut_from_json` reads it back."""
        return {"kind": self.name, **as_dict(self)}


@described
class WholeShares(Cut):
    """Each rank computes whole samples, all of them before ranks wait for each other."""

    name: ClassVar[str] = "whole_shares"

    def check_deferral(self) -> None:
        """Raise nothing: any samples can make a step."""


WHOLE_SHARES = WholeShares()
"""The cut of those who ask for none."""
