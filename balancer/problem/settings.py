"""How plans are made, the same in every step of a run: method, placement, budget, micro-batches. Checked once, here."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Annotated, Any

import numpy as np

import solvers
from balancer.cost import CostModel
from balancer.described import Count, Kind, RuleError, as_dict, described, key, one_of, settle
from balancer.problem.cuts import WHOLE_SHARES, Cut, as_cut, cut_from_json
from solvers.arguments import as_budget, as_share

METHODS = (*solvers.PARTITIONERS, "padded", "mixed")
"""Every partition method that :func:`balancer.balance` takes."""

COUNTED_METHODS = tuple(method for method in METHODS if method not in solvers.USES_CLOCK)
"""The methods whose budget is counted work, so that every rank computes the same plan."""

PLACEMENTS = ("relocate", "rearrange", "any")
"""How samples come to ranks, by name."""

MODES = ("separate", "joint")
"""How encoders are balanced: each for itself, or their sum."""

STOP_AT = 1e-3
"""The gap at which the search for even groups ends by default: less than a step's time varies by itself."""

EPS = 1e-3
"""How much larger relocation may make the makespan by default, as a fraction of it."""


def as_tolerance(eps: Any) -> float | Fraction:
    """Return a share of the makespan below 1, such as 0.001 or ``"0.1%"``; one that no float is stays exact."""
    share = as_share("share", eps)
    if share >= 1:
        meant = f" (for {float(share):g} percent write {float(share):g}%)"
        raise RuleError(f"be a share < 1 of the makespan{meant if share <= 100 and '%' not in str(eps) else ''}")
    return _as_number(eps)


def _as_number(given: Any) -> float | Fraction:
    """Return a share as a number; one that no float is stays exact."""
    share = as_share("share", given)
    return float(share) if as_share("share", float(share)) == share else share


def _seconds(given: Any) -> float:
    if isinstance(given, bool | np.bool_) or not isinstance(given, Real | Decimal):
        raise TypeError
    return as_budget(float(given))


_SHARE = 'a share >= 0, such as 0.001 or "0.1%"'
Tolerance = Annotated[float | Fraction, Kind(_SHARE, {"type": ["number", "string"]}, as_tolerance)]
Gap = Annotated[float | Fraction | str, Kind(_SHARE, {"type": ["number", "string"]}, _as_number)]
Seconds = Annotated[float, Kind("a number of seconds > 0", {"type": "number", "exclusiveMinimum": 0}, _seconds)]


@described
class PlanSettings:
    """How every step of a run is planned.

    Raises
    ------
    TypeError, ValueError
        A setting that cannot be used; it names the setting, the value and the rule.
    """

    method: Annotated[str, one_of(*METHODS)] = key("A partition method, or auto.", default="auto")
    placement: Annotated[str, one_of(*PLACEMENTS)] = key(
        "How plans choose ranks: relocate, rearrange or any.", default=PLACEMENTS[0]
    )
    eps: Tolerance = key('How much longer a step may take so that less moves: 0.001 or "0.1%".', default=EPS)
    time_budget: Seconds = key("Solver work in seconds, per step and phase; counted, not timed.", default=0.01)
    mode: Annotated[str, one_of(*MODES)] = key("How encoders are balanced: separate or joint.", default=MODES[0])
    group_size: Count | None = key("Plan and exchange only within groups of so many ranks.", default=None)
    cut: Cut = WHOLE_SHARES  # how the last phase is cut
    stop_at: Gap = key("The gap that is small enough; 0: search on for the optimum.", default=STOP_AT)

    def __post_init__(self) -> None:
        settle(self)
        object.__setattr__(self, "cut", as_cut(self.cut))
        self.cut.check_settings(self.method, self.group_size)

    def to_json(self) -> dict[str, Any]:
        """Return what differs from the defaults, as a plan file holds it."""
        of_cut = {} if self.cut == WHOLE_SHARES else {"cut": self.cut.to_json()}
        return {**as_dict(self), **of_cut}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "PlanSettings":
        """Read back what :meth:`to_json` wrote; KeyError, TypeError or ValueError if it did not."""
        return cls(**{**found, "cut": cut_from_json(found.get("cut"))})


def default_placement(homes_known: bool, num_nodes: int) -> str:
    """Return what ``placement=None`` means: relocation where homes are given or there are several nodes, else any.

    Inside one node, and from homes that nobody named, hardly anyone notices what moves.
    """
    return "relocate" if homes_known or num_nodes > 1 else "any"


def check_method(method: str, cost: CostModel) -> str:
    """Return the partition method for `cost`; ValueError says which of those that there are take it."""
    own = "padded" if cost.padded else "mixed" if cost.c else None
    if own is not None and method not in ("auto", own):
        raise ValueError(f"method {method!r} does not take cost '{cost}'; methods that do are auto, {own}")
    if own is None and method in ("padded", "mixed"):
        kind = "padded" if method == "padded" else "convolution"
        raise ValueError(f"method {method!r} takes {kind} costs, not cost '{cost}'; use auto")
    return own or method
