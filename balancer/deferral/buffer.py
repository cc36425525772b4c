"""Deferral where lengths become known as samples are drawn: a buffer that looks a few steps ahead."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

import solvers
from balancer.cost import CostModel
from balancer.deferral.settings import StepSettings
from balancer.planner import balance
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.cuts import Cut
from solvers.arguments import as_budget
from solvers.deferral import UNLIMITED
from solvers.errors import SolverError, UsageError

Ints = NDArray[np.int64]

_FORESEEN = 2  # windows of steps; on the benchmark's log 1 is 2.6 points worse on average and 3 is 1.1: `online`

_MOST_SEARCHES = 8  # for a step that ranks can take; 65 for 43 steps in which they are full to 95 % of their caps

_STATE = ("drawn", "next", "flushed", "nominal", "samples", "recent")


class _Tighter(NamedTuple):
    """By how much less the next step may hold than its limits say, so that its ranks can take it."""

    less: int = 0  # tokens of all samples below what all ranks hold
    tall: int = UNLIMITED  # tokens in samples over a third of a cap: two of these share a rank, and three never

    def after(self, lengths: Ints, num_ranks: int, cap: int) -> _Tighter:
        """Return the next try, after a step of these lengths that had no plan."""
        over = solvers.partition(lengths, num_ranks, time_budget=0.002, stop_at=0).makespan - cap
        less = max(2 * self.less, num_ranks * max(over, 1))
        # The first time less room may be enough, and tall samples may stay as they are.
        return _Tighter(less, max(0, int(lengths[3 * lengths > cap].sum()) - less) if self.less else UNLIMITED)

    def lower(self, limits: dict[str, Any], start: Ints, num_ranks: int, cap: int) -> None:
        """Lower, in place, what the first step may hold; but not below what it begins with."""
        (least, most), tokens = limits["token_limits"], limits["tokens"]
        tall = np.where(3 * tokens > cap, tokens, 0)
        most[0] = max(min(most[0], num_ranks * cap - self.less), int(tokens[start == 0].sum()))
        least[0] = min(least[0], most[0])
        of_tall = np.full_like(most, UNLIMITED)
        of_tall[0] = max(self.tall, int(tall[start == 0].sum()))
        limits["sizes"] = np.vstack([limits["sizes"], tall])
        limits["size_limits"] = np.vstack([limits["size_limits"], of_tall])


class DeferBuffer:
    """Samples that were drawn and have not run, of all ranks.

    A nominal step is what is drawn for a step, cut by count or by tokens. Step t is chosen once the nominal steps up to
    t + early are complete: so `early` steps are filled first. Samples that are not chosen wait, at most `late` steps.
    The buffer expects that later steps are like the last steps that were drawn. Ranks get the same steps if they push
    the same lengths in the same pushes, and ask for steps in between alike: what is known when a step is chosen counts.

    Parameters
    ----------
    num_ranks, step_samples, step_tokens, window, counts, tokens_within, cost, max_tokens_per_rank, cut
        As of :func:`balancer.defer`. Each step's search begins with samples in the order drawn, moved where a step has
        too many tokens. Where steps are cut by count and single samples are a large part of one, it may still be over
        `tokens_within`. With `max_tokens_per_rank` a plan is asked for before a step is handed out: its ranks can take
        it.
    time_budget : float
        Seconds' worth of work for each step, counted and not timed.

    Examples
    --------
    >>> buffer = DeferBuffer(2, step_samples=5, window=1)
    >>> buffer.push([8, 1, 1, 1, 1, 8, 1, 1, 1, 1])
    >>> buffer.flush()
    >>> [step.tolist() for step in buffer]
    [[0, 2, 3, 4, 5], [1, 6, 7, 8, 9]]
    """

    def __init__(
        self,
        num_ranks: int,
        *,
        step_samples: int | None = None,
        step_tokens: int | None = None,
        window: int | tuple[int, int] = 0,
        counts: Literal["exact", "any"] | None = None,
        tokens_within: float | Fraction | str | None = None,
        cost: str | CostModel = "linear",
        max_tokens_per_rank: int | None = None,
        cut: Cut | None = None,
        time_budget: float = 0.25,
    ) -> None:
        across = AcrossSteps(window=window, tokens_within=tokens_within, counts=counts, step_tokens=step_tokens)
        self._settings = StepSettings.of(num_ranks, step_samples, across, cost, max_tokens_per_rank, cut)
        self._early, self._late = across.early, across.late
        self._time_budget = as_budget(time_budget)
        self._drawn = 0  # samples so far
        self._next = 0  # the step that is chosen next
        self._flushed = False
        self._nominal = np.zeros((2, 0), dtype=np.int64)  # tokens and samples of nominal steps since `_oldest`
        # int64[3, n]: number, length and nominal step of each sample that waits, as it was drawn
        self._samples = np.zeros((3, 0), dtype=np.int64)
        self._recent: list[Ints] = []  # lengths of the last nominal steps that were complete, `_foreseen` at most

    @property
    def _foreseen(self) -> int:
        """Steps after those known for which recent ones stand: what can wait is seen to find company there.

        None where nothing is known ahead: the last step would be chosen before it is known to be the last.
        """
        return _FORESEEN * (self._early + self._late) if self._early else 0

    def push(self, lengths: ArrayLike) -> None:
        """Add samples as they are drawn; they are numbered from 0 on over all pushes.

        Raises
        ------
        TypeError, ValueError
            Lengths that cannot be used; a buffer that was flushed.
        """
        if self._flushed:
            raise UsageError("the buffer was flushed: nothing is pushed behind that", "make a new one for a new epoch")
        new = self._settings.checked(lengths)
        open_step = self._next_nominal
        # Only the open step is cut anew: new samples may still fill it, complete ones do not change.
        is_open = self._samples[2] >= open_step
        of_open = np.concatenate([self._samples[1, is_open], new])
        step = open_step + self._settings.nominal_steps(of_open)
        numbers = np.concatenate([self._samples[0, is_open], self._drawn + np.arange(len(new))])
        self._drawn += len(new)
        self._samples = np.concatenate([self._samples[:, ~is_open], np.stack([numbers, of_open, step])], axis=1)
        last = int(step[-1]) if len(step) else open_step
        # Cut by count, a full step is complete at once; cut by tokens, it is only when the next sample does not fit.
        full = np.count_nonzero(step == last) == self._settings.step_samples
        self._close(last + full, of_open, step)

    def flush(self) -> None:
        """Say that nothing more is drawn: what waits runs in the steps that are left."""
        if not self._flushed:
            self._flushed = True
            is_open = self._samples[2] >= self._next_nominal
            if is_open.any():
                self._close(self._next_nominal + 1, self._samples[1, is_open], self._samples[2, is_open])

    def _close(self, open_step: int, lengths: Ints, step: Ints) -> None:
        """Count nominal steps that are complete: those before the open one."""
        ends = np.searchsorted(step, np.arange(self._next_nominal, open_step + 1))
        complete = [lengths[begin:end] for begin, end in pairwise(ends)]
        sums = np.array([[each.sum() for each in complete], [len(each) for each in complete]], dtype=np.int64)
        self._nominal = np.concatenate([self._nominal, sums.reshape(2, -1)], axis=1)
        self._recent += complete
        # Not [-foreseen:], which would keep all where nothing is foreseen.
        self._recent = self._recent[len(self._recent) - min(len(self._recent), self._foreseen) :]

    @property
    def _oldest(self) -> int:
        """The nominal step with which `_nominal` begins: older ones have no sample left."""
        return max(0, self._next - self._late)

    @property
    def _next_nominal(self) -> int:
        """The nominal step that is not complete."""
        return self._oldest + self._nominal.shape[1]

    def ready(self) -> bool:
        """Whether the next step can be chosen."""
        ahead = self._next_nominal - self._next
        return ahead > (0 if self._flushed else self._early)

    def next_step(self) -> Ints:
        """Return the numbers of the samples of the next step: int64[], those that were drawn first before others.

        Raises
        ------
        ValueError
            If fewer steps than `early` are filled after it, and the buffer was not flushed; or all have run.
        InfeasibleError, SolverError
            No step was found that ranks can take under `max_tokens_per_rank`; it names the cap that is enough. The
            buffer is as it was.
        """
        if not self.ready():
            ahead = f"{self._early} step{'s' * (self._early != 1)} after it must be filled first"
            raise UsageError(f"step {self._next} cannot be chosen: {'all have run' if self._flushed else ahead}",
                             "ask ready(), push more, or flush()")  # fmt: skip
        known = self._samples[2] < self._next_nominal
        waiting = self._samples[:, known]
        runs = self._fitting(waiting)
        # Steps found for later samples are dropped: the next search knows more than this one.
        chosen: Ints = waiting[0, runs]
        self._samples = np.concatenate([waiting[:, ~runs], self._samples[:, ~known]], axis=1)
        # `_oldest` moves with `_next`, so the sums of steps that no sample is left of go with it.
        oldest = self._oldest
        self._next += 1
        self._nominal = self._nominal[:, self._oldest - oldest :]
        return chosen

    def _fitting(self, waiting: Ints) -> NDArray[np.bool_]:
        """Return which of the samples that wait run in the next step, so that ranks can take it."""
        asked, tighter, failure = self._settings, _Tighter(), None
        cap = asked.max_tokens_per_rank
        for _ in range(_MOST_SEARCHES):
            runs = self._choose(waiting, tighter)
            if cap is None:
                return runs
            lengths = waiting[1, runs]
            try:
                balance(
                    lengths, asked.num_ranks, cost=asked.cost, max_tokens_per_rank=cap, cut=asked.cut, placement="any"
                )
            except SolverError as error:
                failure = failure or error  # of the step that was best otherwise
                tighter = tighter.after(lengths, asked.num_ranks, cap)
            else:
                return runs
        assert failure is not None
        raise failure.within(f"step {self._next}")

    def _choose(self, waiting: Ints, tighter: _Tighter) -> NDArray[np.bool_]:
        """Return which of the samples that wait run in the next step, by a search over all steps that are known."""
        asked, begin, last = self._settings, self._next, self._next_nominal - 1
        _, lengths, nominal = waiting
        sums = self._nominal
        if not self._flushed:  # what comes next will be like what came
            expected = [self._recent[k % len(self._recent)] for k in range(self._foreseen)]
            lengths = np.concatenate([lengths, *expected])
            nominal = np.concatenate([nominal, *(np.full(len(each), last + 1 + k) for k, each in enumerate(expected))])
            last += len(expected)
            more = [[each.sum() for each in expected], [len(each) for each in expected]]
            sums = np.concatenate([sums, np.array(more, dtype=np.int64).reshape(2, -1)], axis=1)
        rows, oldest = np.arange(self._oldest, last + 1), self._oldest
        # Steps before `begin` have run: no window may reach back to them.
        first = np.maximum(rows - self._early, begin)
        spans = np.stack([first, np.maximum(first, np.minimum(rows + self._late, last))], axis=1) - begin
        mine, ahead = spans[nominal - oldest], sums[:, begin - oldest :]
        # With exact counts the start says how many samples each step has, so it goes by samples and not by tokens.
        amounts, shares = (np.ones_like(lengths), ahead[1]) if asked.is_exact else (lengths, ahead[0])
        start = np.clip(_in_turn(amounts, nominal, shares), *mine.T)
        if not asked.is_exact:
            most = asked.most_tokens(sums[0])[begin - oldest :]
            most[0] = min(most[0], asked.num_ranks * (asked.max_tokens_per_rank or UNLIMITED) - tighter.less)
            _keep_within(start, lengths, mine, most)
        limits = asked.limits(lengths, start, sums, begin - oldest)
        if tighter.less:
            tighter.lower(limits, start, asked.num_ranks, asked.max_tokens_per_rank or 0)
        costs, heights = asked.cut.least_work(asked.cost, lengths, asked.num_ranks)
        found = solvers.defer(costs, nominal - oldest, spans, asked.num_ranks, start=start, heights=heights,
                              time_budget=self._time_budget, **limits)  # fmt: skip
        return np.asarray(found.step_of_item[: waiting.shape[1]] == 0)

    def __iter__(self) -> DeferBuffer:
        """Iterate over steps, as long as they can be chosen."""
        return self

    def __next__(self) -> Ints:
        if not self.ready():
            raise StopIteration
        return self.next_step()

    def state_dict(self) -> dict[str, Any]:
        """Return what waits, and where the buffer is, as JSON."""
        values = (self._drawn, self._next, self._flushed, self._nominal.tolist(), self._samples.tolist(),
                  [each.tolist() for each in self._recent])  # fmt: skip
        return dict(zip(_STATE, values, strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that a buffer of the same settings returned.

        Raises
        ------
        ValueError
            What is no such state; it names what is missing.
        """
        if not isinstance(state, Mapping) or (missing := [name for name in _STATE if name not in state]):
            given = repr(state)[:80] if not isinstance(state, Mapping) else f"one without {', '.join(missing)}"
            raise UsageError("state must be what state_dict() returned, got {given}", given=given)
        self._drawn, self._next, self._flushed = int(state["drawn"]), int(state["next"]), bool(state["flushed"])
        self._nominal = np.array(state["nominal"], dtype=np.int64).reshape(2, -1)
        self._samples = np.array(state["samples"], dtype=np.int64).reshape(3, -1)
        self._recent = [np.array(each, dtype=np.int64) for each in state["recent"]]


def _in_turn(amounts: Ints, nominal: Ints, shares: Ints) -> Ints:
    """Return a step of each sample, in the order of their nominal steps: of all amounts each step has its share.

    What ran early left room, and what is late takes it, so that everything after moves by a step at most.
    """
    order = np.argsort(nominal, kind="stable")
    filled = np.cumsum(amounts[order])
    whole, total = int(shares.sum()), int(filled[-1]) if len(filled) else 0
    bounds = np.array([int(share) * total // max(whole, 1) for share in np.cumsum(shares)], dtype=np.int64)
    step = np.empty_like(nominal)
    step[order] = np.searchsorted(bounds, filled - (amounts[order] + 1) // 2, side="right")
    return step


def _keep_within(step: Ints, lengths: Ints, windows: Ints, most: Ints) -> None:
    """Move samples, in place, out of steps that hold more than they may, as far as windows let that be.

    First from the last step to the first, to earlier steps with room: what waits longest has no later one. Then from
    the first to the last, to the next step: what is over there may go further.
    """
    held = np.zeros(len(most), dtype=np.int64)
    np.add.at(held, step, lengths)
    for way in (-1, 1):
        for t in range(len(most))[::way]:
            if held[t] <= most[t]:
                continue
            here = np.flatnonzero((step == t) & (lengths > 0))
            # The shortest first: they fit most easily, and moving them changes the other steps least.
            for i in here[np.argsort(lengths[here], kind="stable")].tolist():
                first, last = windows[i].tolist()
                others = range(t - 1, first - 1, -1) if way < 0 else range(t + 1, last + 1)
                for other in others:
                    if held[other] + lengths[i] <= most[other] or (way > 0 and other > t):
                        step[i] = other
                        held[t] -= lengths[i]
                        held[other] += lengths[i]
                        break
                if held[t] <= most[t]:
                    break
