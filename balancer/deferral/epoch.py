"""One epoch in steps: chosen here, or by whoever wrote a plan, and then checked: judged by the same numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.deferral.defer import Drawn
from balancer.deferral.effects import TrainingEffects, effects_of
from balancer.deferral.request import Request, held_in
from balancer.deferral.work import Chosen, PhaseWork, choose
from solvers.errors import UsageError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class EpochSteps:
    """The steps of an epoch's samples, and what is proven of them.

    Attributes
    ----------
    step, nominal : int64[n]
        Of each sample, in the order of the epoch; -1 of those left out with a short last step.
    sizes : int64[T]
        Samples of each step.
    even_share, floor, chosen_floor, lower_bound : int
        What all steps take together if no rank ever waits; at least without deferral; these steps at least; any steps
        within windows and limits at least.
    effects : TrainingEffects
    part : int
        Which part of its epoch these are, where steps are chosen part by part.
    """

    step: Ints
    nominal: Ints
    sizes: Ints
    even_share: int
    floor: int
    chosen_floor: int
    lower_bound: int
    effects: TrainingEffects
    part: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return what there is to report of it."""
        return {
            "steps": len(self.sizes), "even_share": self.even_share, "floor": self.floor,
            "chosen_floor": self.chosen_floor, "lower_bound": self.lower_bound, **asdict(self.effects),
        }  # fmt: skip


def choose_steps(
    request: Request, lengths: Ints, stage: NDArray[Any] | None, keys: NDArray[Any] | None, drop_last: bool,
    phases: Sequence[PhaseWork] = (),
) -> EpochSteps:  # fmt: skip
    """Choose the step of each sample of an epoch.

    Parameters
    ----------
    request : Request
    lengths : int64[n]
        In the order of the epoch.
    stage, keys : array[n], optional
        What no sample is moved across, and what stays together.
    drop_last : bool
        Leave out a short last step.
    phases : sequence of PhaseWork, optional
        What each phase takes of all samples; by default one phase, of the request's cost.
    """
    nominal = request.nominal_steps(request.checked(lengths), drop_last)
    drawn, kept = _drawn(request, lengths, nominal, stage, keys, phases)
    if drawn is None:
        return _found(request, drawn, nominal, nominal, kept, None)
    found = drawn.solve()
    step = nominal.copy()
    step[kept] = found.step[drawn.item]
    return _found(request, drawn, nominal, step, kept, found)


def check_steps(
    request: Request,
    lengths: Ints,
    stage: NDArray[Any] | None,
    keys: NDArray[Any] | None,
    drop_last: bool,
    phases: Sequence[PhaseWork] = (),
    *,
    step: Ints,
) -> EpochSteps:
    """Check the steps of an epoch that somebody chose, and prove their bound anew.

    Raises
    ------
    ValueError
        A sample outside its window, what stays together in two steps, or a step that is not within its limits.
    """
    nominal = request.nominal_steps(request.checked(lengths), drop_last)
    if (odd := (step < 0) != (nominal < 0)).any():
        i = int(np.argmax(odd))
        raise UsageError(f"sample {{sample}} of the epoch is {'not placed' if step[i] < 0 else 'placed'}, which it must"
                         f"{'' if step[i] < 0 else ' not'} be", sample=i)  # fmt: skip
    drawn, kept = _drawn(request, lengths, nominal, stage, keys, phases)
    if drawn is None:
        return _found(request, drawn, nominal, step, kept, None)
    here = step[kept]
    given = drawn.given()
    spans = np.asarray(given.spans)[given.rows[drawn.item]]
    if (odd := (here < spans[:, 0]) | (here > spans[:, 1])).any():
        i = int(np.argmax(odd))
        raise UsageError(f"sample {int(kept[i])} of the epoch is in step {int(here[i])}, outside its window "
                         f"{spans[i].tolist()}")  # fmt: skip
    if (apart := here != here[drawn.first[drawn.item]]).any():
        i = int(kept[np.argmax(apart)])
        raise UsageError(f"sample {i} of the epoch is in another step than the samples that it must stay with")
    _check_limits(given.limits, here[drawn.first])
    # No search: the steps are given, and only the bound is proven anew.
    found = choose(*given, search=False)._replace(total=given.at_least(here[drawn.first]))
    return _found(request, drawn, nominal, step, kept, found)


def _drawn(
    request: Request, lengths: Ints, nominal: Ints, stage: NDArray[Any] | None, keys: NDArray[Any] | None,
    phases: Sequence[PhaseWork],
) -> tuple[Drawn | None, Ints]:  # fmt: skip
    """Return the samples that are not left out as the solver sees them, None if all are, and which they are."""
    kept = np.flatnonzero(nominal >= 0)
    # Keys of any kind become numbers, as the solver compares integers only.
    stages, together = (None if of is None else np.unique(of[kept], return_inverse=True)[1].astype(np.int64)
                        for of in (stage, keys))  # fmt: skip
    works = [each.taken(kept) for each in phases]
    drawn = Drawn(request, lengths[kept], nominal[kept], stages, together, works) if len(kept) else None
    return drawn, kept


def _found(
    request: Request, drawn: Drawn | None, nominal: Ints, step: Ints, kept: Ints, found: Chosen | None
) -> EpochSteps:
    steps = 0 if drawn is None else drawn.num_steps
    sizes = np.bincount(step[kept], minlength=steps).astype(np.int64)
    lengths = np.empty(0, dtype=np.int64) if drawn is None else drawn.lengths
    long_from = 0 if drawn is None else request.long_from(drawn.nominal_sums()[0])
    even = 0 if drawn is None else drawn.even_share
    effects = effects_of(lengths, nominal[kept], step[kept], long_from)
    proven = (0, 0, 0) if found is None else (found.start_total, found.total, found.lower_bound)
    return EpochSteps(step, nominal, sizes, even, *proven, effects)


def _check_limits(limits: dict[str, Any], step: Ints) -> None:
    """Raise unless every step holds what it must and may."""
    for name, held, least, most in held_in(limits, step):
        if (odd := (held < least) | (held > most)).any():
            t = int(np.argmax(odd))
            raise UsageError(
                f"step {t} of the epoch has {int(held[t])} {name}, outside {int(least[t])}..{int(most[t])}"
            )
