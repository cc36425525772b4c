"""One epoch in steps: chosen here, or by whoever wrote a plan, and then checked: judged by the same numbers."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.deferral.defer import Drawn
from balancer.deferral.effects import TrainingEffects, effects_of
from balancer.deferral.request import Request
from solvers.errors import UsageError

__all__ = ["EpochSteps", "check_steps", "choose_steps"]

Ints = NDArray[np.int64]

_NO_SEARCH = 1e-9  # seconds' worth of work: the bound alone


@dataclass(frozen=True, slots=True, eq=False)
class EpochSteps:
    """The steps of an epoch's samples, and what is proven of them.

    Attributes
    ----------
    step, nominal : int64[n]
        Of each sample, in the order of the epoch; -1 of those left out with a short last step.
    sizes : int64[T]
        Samples of each step.
    even_share, floor, lower_bound : int
        What all steps take together if no rank ever waits; at least without deferral; at least with it.
    effects : TrainingEffects
    """

    step: Ints
    nominal: Ints
    sizes: Ints
    even_share: int
    floor: int
    lower_bound: int
    effects: TrainingEffects

    def as_json(self) -> dict[str, Any]:
        """Return what there is to report of it."""
        return {
            "steps": len(self.sizes), "even_share": self.even_share, "floor": self.floor,
            "lower_bound": self.lower_bound, **asdict(self.effects),
        }  # fmt: skip


def choose_steps(
    request: Request, lengths: Ints, stage: NDArray[Any] | None, keys: NDArray[Any] | None, drop_last: bool
) -> EpochSteps:
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
    """
    nominal = request.nominal_steps(request.checked(lengths), drop_last)
    drawn, kept = _drawn(request, lengths, nominal, stage, keys)
    if drawn is None:
        return _found(request, drawn, nominal, nominal, kept, 0, 0)
    found = drawn.solve()
    step = nominal.copy()
    step[kept] = found.step_of_item[drawn.item]
    return _found(request, drawn, nominal, step, kept, found.start_total, found.lower_bound)


def check_steps(
    request: Request,
    lengths: Ints,
    stage: NDArray[Any] | None,
    keys: NDArray[Any] | None,
    drop_last: bool,
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
    drawn, kept = _drawn(request, lengths, nominal, stage, keys)
    if drawn is None:
        return _found(request, drawn, nominal, step, kept, 0, 0)
    here = step[kept]
    given = drawn.given()
    spans = np.asarray(given.spans)[given.rows[drawn.item]]
    if (odd := (here < spans[:, 0]) | (here > spans[:, 1])).any():
        i = int(np.argmax(odd))
        raise UsageError(f"sample {int(kept[i])} of the epoch is in step {int(here[i])}, outside its window "
                         f"{spans[i].tolist()}")  # fmt: skip
    if (apart := here != here[drawn.first[drawn.item]]).any():
        raise UsageError(f"sample {int(kept[np.argmax(apart)])} of the epoch is not with those it stays together with")
    _check_limits(given.limits, here[drawn.first], drawn.num_steps)
    found = solvers.defer(given.costs, given.rows, spans=given.spans, num_bins=request.num_ranks, start=given.start,
                          time_budget=_NO_SEARCH, **given.limits)  # fmt: skip
    return _found(request, drawn, nominal, step, kept, found.start_total, found.lower_bound)


def _drawn(
    request: Request, lengths: Ints, nominal: Ints, stage: NDArray[Any] | None, keys: NDArray[Any] | None
) -> tuple[Drawn | None, Ints]:
    """Return the samples that are not left out as the solver sees them, None if all are, and which they are."""
    kept = np.flatnonzero(nominal >= 0)
    codes = (None if of is None else np.unique(of[kept], return_inverse=True)[1].astype(np.int64)
             for of in (stage, keys))  # fmt: skip
    return (Drawn(request, lengths[kept], nominal[kept], *codes) if len(kept) else None), kept


def _found(
    request: Request, drawn: Drawn | None, nominal: Ints, step: Ints, kept: Ints, floor: int, bound: int
) -> EpochSteps:
    steps = 0 if drawn is None else drawn.num_steps
    sizes = np.bincount(step[kept], minlength=steps).astype(np.int64)
    lengths = np.empty(0, dtype=np.int64) if drawn is None else drawn.lengths
    long_from = 0 if drawn is None else request.long_from(drawn.nominal_sums()[0])
    even = 0 if drawn is None else -(-int(drawn.costs.sum()) // request.num_ranks)
    effects = effects_of(lengths, nominal[kept], step[kept], long_from)
    return EpochSteps(step, nominal, sizes, even, floor, bound, effects)


def _check_limits(limits: dict[str, Any], step: Ints, num_steps: int) -> None:
    """Raise unless every step holds what it must and may."""
    asked = [("tokens", limits["tokens"], *limits["token_limits"]), ("samples", limits["counts"],
             *limits["count_limits"])]  # fmt: skip
    none = np.zeros(num_steps, dtype=np.int64)
    asked += [("long samples' tokens or samples", size, none, most)
              for size, most in zip(limits.get("sizes", ()), limits.get("size_limits", ()), strict=True)]  # fmt: skip
    for name, amounts, least, most in asked:
        held = np.zeros(num_steps, dtype=np.int64)
        np.add.at(held, step, amounts)
        if (odd := (held < least) | (held > most)).any():
            t = int(np.argmax(odd))
            raise UsageError(
                f"step {t} of the epoch has {int(held[t])} {name}, outside {int(least[t])}..{int(most[t])}"
            )
