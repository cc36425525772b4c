"""How plans are made, the same in every step of a run: method, placement, budget, micro-batches. Checked once, here."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import solvers
from balancer.cost import CostModel
from balancer.problem.cuts import WHOLE_SHARES, Cut, as_cut, cut_from_json
from solvers.arguments import as_budget, as_count, as_share
from solvers.errors import ArgumentError

METHODS = (*solvers.PARTITIONERS, "padded", "mixed")
"""Every partition method that :func:`balancer.balance` takes."""

COUNTED_METHODS = tuple(method for method in METHODS if method not in solvers.USES_CLOCK)
"""The methods whose budget is counted work, so that every rank computes the same plan."""

PLACEMENTS = ("relocate", "rearrange", "any")
"""How samples come to ranks, by name."""

MODES = ("separate", "joint")
"""How encoders are balanced: each for itself, or their sum."""

STOP_AT = "0.1%"
"""The gap at which the search for even groups ends by default: less than a step's time varies by itself."""

EPS = 1e-3
"""How much larger relocation may make the makespan by default, as a fraction of it."""

_IN_FILES = {"cut": "micro_batches"}
"""Fields that plan files call otherwise."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How every step of a run is planned.

    Raises
    ------
    TypeError, ValueError
        A setting that cannot be used; it names the setting, the value and the rule.
    """

    method: str = "auto"  # a name in `METHODS`
    placement: str = PLACEMENTS[0]  # a name in `PLACEMENTS`
    eps: float | Fraction = EPS  # how much larger relocation may make the makespan, below 1; ``"1%"`` becomes 0.01
    time_budget: float = 0.01  # seconds' worth of work, counted and not timed, in each phase
    mode: str = MODES[0]  # a name in `MODES`
    group_size: int | None = None  # plan within groups of this number of consecutive ranks
    cut: Cut = WHOLE_SHARES  # how the last phase is cut
    # The proven gap at which a partition is good enough; 0: searched until the budget ends. ``"1%"`` becomes 0.01
    stop_at: float | Fraction | str = STOP_AT

    def __post_init__(self) -> None:
        for name, known in (("method", METHODS), ("placement", PLACEMENTS)):
            _check_known(name, getattr(self, name), known)
        object.__setattr__(self, "eps", as_tolerance(self.eps))
        as_budget(self.time_budget)
        object.__setattr__(self, "stop_at", _as_written(self.stop_at, as_share("stop_at", self.stop_at)))
        if self.mode not in MODES:
            raise ArgumentError("mode", f"be one of {', '.join(MODES)}", repr(self.mode))
        if self.group_size is not None:
            object.__setattr__(self, "group_size", as_count("group_size", self.group_size))
        object.__setattr__(self, "cut", as_cut(self.cut))
        self.cut.check_settings(self.method, self.group_size)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a plan file holds them."""
        found: dict[str, Any] = {_IN_FILES.get(spec.name, spec.name): getattr(self, spec.name) for spec in fields(self)}
        for share in ("eps", "stop_at"):
            found[share] = str(found[share]) if isinstance(found[share], Fraction) else found[share]
        found["micro_batches"] = self.cut.to_json()
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "PlanSettings":
        """Read back what :meth:`to_json` wrote; KeyError, TypeError or ValueError if it did not."""
        rest = dict(found)
        eps, cut = found["eps"], cut_from_json(rest.pop("micro_batches"))
        return cls(**{**rest, "eps": Fraction(eps) if isinstance(eps, str) else eps, "cut": cut})


def as_tolerance(eps: float | Fraction | str) -> float | Fraction:
    """Return a share of the makespan below 1, such as 0.001 or ``"0.1%"``; one that no float is stays exact."""
    share = as_share("eps", eps)
    if share >= 1:
        percent = f"; {eps} percent is {eps}%" if share <= 100 and "%" not in str(eps) else ""
        raise ArgumentError("eps", f"be < 1, a share of the makespan{percent}", f"{eps!s:.60}")
    return _as_written(eps, share)


def _as_written(given: float | Fraction | str, share: Fraction) -> float | Fraction:
    """Return `given` as a number; one that no float is stays exact."""
    if not isinstance(given, str):
        return given
    return float(share) if as_share("eps", float(share)) == share else share


def default_placement(homes_known: bool, num_nodes: int) -> str:
    """Return what ``placement=None`` means: relocation where homes are given or there are several nodes, else any.

    Inside one node, and from homes that nobody named, hardly anyone notices what moves.
    """
    return "relocate" if homes_known or num_nodes > 1 else "any"


def check_method(method: str, cost: CostModel) -> str:
    """Return the partition method of that name for `cost`; ValueError lists those that there are."""
    _check_known("method", method, METHODS)
    own = "padded" if cost.padded else "mixed" if cost.c else None
    if own is not None and method not in ("auto", own):
        raise ValueError(f"method {method!r} does not take cost '{cost}'; methods that do are auto, {own}")
    if own is None and method in ("padded", "mixed"):
        kind = "padded" if method == "padded" else "convolution"
        raise ValueError(f"method {method!r} takes {kind} costs, not cost '{cost}'; use auto")
    return own or method


def _check_known(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"unknown {name} {value!r}; known {name}s are {', '.join(known)}")
