"""What balancing did over the steps so far: what dispatchers and samplers report, and trainers log."""

from dataclasses import dataclass, fields
from fractions import Fraction

from balancer.plan.dispatch_plan import DispatchPlan

__all__ = ["BalanceReport", "even_rank_time", "ratio_of"]


@dataclass(frozen=True, slots=True)
class BalanceReport:
    """Sums over the steps so far of one phase, and what follows from them; two reports are added by ``+``.

    Ratios over many steps are of rank-time, in units of the cost: what all ranks spend until the slowest is done, over
    what they would spend if all were even. So a long step counts for more than a short one.

    Attributes
    ----------
    steps : int
    spent_before, spent : int or Fraction
        Rank-time until the slowest rank is done: of the samples as they were drawn, and as they were planned.
    worked_before, worked : int or Fraction
        The same of perfectly even ranks.
    volume, moved, crossing : int
        Elements of all samples, of those that left their rank, and of those that left their node.
    plan_s, exchange_s : float
        Seconds of this rank's host in planning (or in reading what another rank planned) and in the exchange.
        They cost nothing where the next step is made while this one computes.
    worst_step : int
        The step with the largest imbalance ratio as planned, counted from 0; the first of equals.
    worst_imbalance : float
        That ratio.

    Examples
    --------
    >>> import balancer
    >>> plan = balancer.balance([900, 100, 400, 600], num_ranks=2, home_rank=[0, 0, 1, 1])
    >>> one = BalanceReport.of_plan(plan, plan_s=0.002)
    >>> print(one + one)
    2 steps: ranks wait 0.0 % of the time (imbalance 1.000), 0.0 % as drawn (1.000): 0.0 % of step time saved, predicted
    moved 0.0 % of the lengths, 0.0 % across nodes; a step took 2.0 ms to plan, 0.0 ms to exchange
    worst step 0: imbalance 1.000
    """

    steps: int = 0
    spent_before: int | Fraction = 0
    spent: int | Fraction = 0
    worked_before: int | Fraction = 0
    worked: int | Fraction = 0
    volume: int = 0
    moved: int = 0
    crossing: int = 0
    plan_s: float = 0.0
    exchange_s: float = 0.0
    worst_step: int = 0
    worst_imbalance: float = 1.0

    @classmethod
    def of_plan(cls, plan: DispatchPlan, plan_s: float, exchange_s: float = 0.0) -> "BalanceReport":
        """Report on one step, given its plan and the seconds that it took. O(samples + ranks)."""
        traffic, ranks = plan.traffic, plan.num_ranks
        spent, worked = plan.makespan * ranks, even_rank_time(plan)
        return cls(
            1, plan.home_makespan * ranks, spent, even_rank_time(plan, home=True), worked,
            traffic.total, traffic.inter_node + traffic.intra_node, traffic.inter_node,
            plan_s, exchange_s, 0, ratio_of(spent, worked),
        )  # fmt: skip

    def __add__(self, later: "BalanceReport") -> "BalanceReport":
        """Return the report on these steps and those of `later`, which come after them."""
        added = {each.name: getattr(self, each.name) + getattr(later, each.name) for each in fields(self)}
        worse = later.steps > 0 and (self.steps == 0 or later.worst_imbalance > self.worst_imbalance)
        added["worst_imbalance"] = (later if worse else self).worst_imbalance
        added["worst_step"] = self.steps + later.worst_step if worse else self.worst_step
        return BalanceReport(**added)

    @property
    def imbalance_before(self) -> float:
        """Imbalance ratio of the samples as they were drawn; 1.0 is perfect."""
        return ratio_of(self.spent_before, self.worked_before)

    @property
    def imbalance(self) -> float:
        """Imbalance ratio of the plans."""
        return ratio_of(self.spent, self.worked)

    @property
    def waiting_before(self) -> float:
        """Share of the ranks' time that would be spent waiting for the slowest, had nothing been balanced."""
        return 1 - 1 / self.imbalance_before

    @property
    def waiting(self) -> float:
        """Share of the ranks' time that is spent waiting for the slowest, as planned."""
        return 1 - 1 / self.imbalance

    @property
    def gain(self) -> float:
        """Share of the slowest ranks' time that balancing saves, as the cost predicts it."""
        return 1 - ratio_of(self.spent, self.spent_before)

    @property
    def moved_share(self) -> float:
        """Share of the elements that left their rank; 0 for samplers, which exchange nothing."""
        return self.moved / self.volume if self.volume else 0.0

    @property
    def crossing_share(self) -> float:
        """Share of the elements that left their node."""
        return self.crossing / self.volume if self.volume else 0.0

    @property
    def plan_ms(self) -> float:
        """Milliseconds of planning a step, on the mean."""
        return 1000 * self.plan_s / max(self.steps, 1)

    @property
    def exchange_ms(self) -> float:
        """Milliseconds of exchange a step, on the mean."""
        return 1000 * self.exchange_s / max(self.steps, 1)

    def numbers(self) -> dict[str, float]:
        """Return four numbers for a trainer's log, by name."""
        return {
            "balancer/imbalance_before": self.imbalance_before, "balancer/imbalance": self.imbalance,
            "balancer/moved_share": self.moved_share, "balancer/plan_ms": self.plan_ms,
        }  # fmt: skip

    def __str__(self) -> str:
        if not self.steps:
            return "no steps yet"
        return (
            f"{self.steps:,} step{'s' * (self.steps > 1)}: ranks wait {self.waiting:.1%} of the time "
            f"(imbalance {self.imbalance:.3f}), {self.waiting_before:.1%} as drawn ({self.imbalance_before:.3f}): "
            f"{self.gain:.1%} of step time saved, predicted\n"
            f"moved {self.moved_share:.1%} of the lengths, {self.crossing_share:.1%} across nodes; "
            f"a step took {self.plan_ms:.1f} ms to plan, {self.exchange_ms:.1f} ms to exchange\n"
            f"worst step {self.worst_step:,}: imbalance {self.worst_imbalance:.3f}"
        ).replace("%", " %")


def even_rank_time(plan: DispatchPlan, home: bool = False) -> int | Fraction:
    """Return the rank-time of perfectly even ranks: a whole number unless ranks have speeds or are pipelines."""
    total, share = plan.perfect(home)
    return total if share == plan.num_ranks else Fraction(total, share) * plan.num_ranks


def ratio_of(spent: int | Fraction, worked: int | Fraction) -> float:
    """Of exact numbers, rounded once, so that equal loads give exactly 1; and so does no load at all."""
    return float(spent / worked) if worked else 1.0
