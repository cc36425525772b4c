"""Balanced batches for any data loader: lengths in, the batches of a rank out, and nothing is exchanged."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.compat._partitions import fill_empty
from balancer.cost import CostModel, parse_cost
from balancer.planning.planner import balance
from balancer.planning.rank_batches import RankBatches
from balancer.problem.batch import GlobalBatch
from balancer.problem.shuffle import shuffled
from solvers.arguments import as_count, as_int64, as_integer
from solvers.errors import ArgumentError, WordedError, Wording

__all__ = ["BalancedBatchSampler"]

_NAMES = {"sample": "row", "samples": "rows", "rank": "micro-batch", "ranks": "micro-batches",
          "max_tokens_per_rank": "micro_batch_tokens"}  # fmt: skip


class BalancedBatchSampler(RankBatches):
    """Batches of row numbers for one rank, of like cost in every micro-step; the `batch_sampler` of a DataLoader.

    Every epoch is shuffled, cut into global batches of ``batch_size * num_replicas * gradient_accumulation_steps``
    samples, and each of those balanced. All ranks compute the same plan from the same arguments.

    Parameters
    ----------
    lengths : int64[n]
        Tokens, frames or patches of every sample of the dataset: a list, an array, or a torch CPU tensor.
    batch_size : int
        Samples a rank and micro-step, on the mean.
    num_replicas : int
        Data-parallel ranks.
    rank : int or None
        Which of them this is. None: the batches of all of them in turn, for ``accelerator.prepare`` to deal out.
    gradient_accumulation_steps : int
        Micro-steps an optimizer step.
    shuffle : bool
        Every epoch in another order; else in that of the dataset.
    seed : int
        Of the order: that of :func:`balancer.problem.shuffle.shuffled`.
    cost : str or CostModel
        What must be even, as in :func:`balancer.balance`: ``"padded"`` where batches are padded to their longest.
    drop_last : bool
        Leave out what remains behind the last full global batch. Else that is balanced too, with as few samples from
        the beginning of the epoch taken again as give each rank as many (`equal_counts`), or any, in each micro-step.
    equal_counts : bool
        Every rank gets as many samples as any other in every micro-step: `batch_size`. Without it long samples come in
        small batches, which suits losses that are normalised over the global batch alone.
    micro_batch_tokens : int, optional
        A cap, never exceeded, on the sum of lengths of a micro-batch; with padded costs, padding counts.
    caps : mapping of str to (int64[n], int), optional
        Further quantities by name: what each sample has of it, and the cap on a micro-batch's sum.
    time_budget : float
        Seconds' worth of work for the solver in a global batch, counted and not timed.

    Raises
    ------
    TypeError, ValueError
        An argument that cannot be used.
    InfeasibleError, SolverError
        While iterating: a global batch that cannot keep to the caps; samples are called by their rows.

    Notes
    -----
    `set_epoch` before every epoch makes its order; `state_dict` and `load_state_dict` make a resumed run go on with
    the batch behind the last. No rank's batch is ever empty.

    Examples
    --------
    >>> lengths = [900, 100, 400, 600, 500, 500, 200, 800]
    >>> ranks = [BalancedBatchSampler(lengths, 2, num_replicas=2, rank=rank) for rank in range(2)]
    >>> [[sum(lengths[row] for row in batch) for batch in sampler] for sampler in ranks]
    [[900, 1300], [800, 1000]]
    """

    def __init__(
        self,
        lengths: ArrayLike,
        batch_size: int,
        num_replicas: int,
        rank: int | None,
        *,
        gradient_accumulation_steps: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        cost: str | CostModel = "linear",
        drop_last: bool = False,
        equal_counts: bool = True,
        micro_batch_tokens: int | None = None,
        caps: Mapping[str, tuple[ArrayLike, int]] | None = None,
        time_budget: float = 0.01,
    ) -> None:
        super().__init__(as_count("num_replicas", num_replicas), rank)
        self.lengths = GlobalBatch.of(lengths, 1).lengths
        self.gradient_accumulation_steps = as_count("gradient_accumulation_steps", gradient_accumulation_steps)
        self._groups = self.num_ranks * self.gradient_accumulation_steps
        self.samples_per_step = as_count("batch_size", batch_size) * self._groups
        self.shuffle, self.seed, self._drop = bool(shuffle), as_integer("seed", seed), bool(drop_last)
        self.equal_counts = bool(equal_counts)
        self._options: dict[str, Any] = {
            "cost": parse_cost(cost), "equal_counts": self.equal_counts, "max_tokens_per_rank": micro_batch_tokens,
            "time_budget": time_budget,
        }  # fmt: skip
        self._caps = {name: (as_int64(name, values), cap) for name, (values, cap) in (caps or {}).items()}
        for name, (values, _) in self._caps.items():
            if len(values) != len(self.lengths):
                raise ArgumentError(
                    "caps", f"have one value for each of {len(self.lengths)} samples", len(values), name
                )
        if len(self.lengths) == 0:
            raise ArgumentError("lengths", "hold at least one sample", "none")
        if drop_last and len(self.lengths) < self.samples_per_step:
            raise ArgumentError(
                "lengths", f"fill a global batch of {self.samples_per_step} with drop_last", len(self.lengths)
            )

    def __len__(self) -> int:
        """Batches of an epoch: of the rank, or of all ranks together."""
        micro_steps = self.num_steps * self.gradient_accumulation_steps
        return micro_steps * (self.num_ranks if self.rank is None else 1)

    @property
    def num_steps(self) -> int:
        """Optimizer steps of an epoch."""
        full, rest = divmod(len(self.lengths), self.samples_per_step)
        return full + (rest > 0 and not self._drop)

    def plan_step(self, step: int, epoch: int = 0) -> list[list[list[int]]]:
        """Return the rows of a step as [micro-step][rank] -> ids."""
        rows = self._rows(step, epoch)
        caps = {name: (values[rows], cap) for name, (values, cap) in self._caps.items()} or None
        words = Wording(_NAMES, {"row": lambda sample: int(rows[sample])})
        try:
            plan = balance(self.lengths[rows], self._groups, caps=caps, **self._options)
        except WordedError as error:
            raise error.in_words(words).within(f"epoch {epoch}, step {step}") from None
        groups = [plan.samples_on_rank(group).tolist() for group in range(self._groups)]
        fill_empty(groups)
        heaviest_first = np.argsort(-plan.loads, kind="stable").tolist()
        grid = []
        for slot in range(self.gradient_accumulation_steps):  # ranks that wait in every slot have like loads in each
            slots = heaviest_first[slot * self.num_ranks : (slot + 1) * self.num_ranks]
            grid.append([rows[sorted(groups[group])].tolist() for group in slots[:: -1 if slot % 2 else 1]])
        return grid

    def _rows(self, step: int, epoch: int) -> NDArray[np.int64]:
        """Return the rows of a global batch, with those that the last one takes again from the beginning."""
        total, first = len(self.lengths), step * self.samples_per_step
        count = min(self.samples_per_step, total - first)
        short = -count % self._groups if self.equal_counts else max(0, self._groups - count)
        positions = np.arange(first, first + count + short) % total
        return shuffled(positions, total, self.seed, epoch) if self.shuffle else positions

    def _micro_steps(self, epoch: int, ranks: Sequence[int], done: int) -> Iterator[tuple[int, list[list[int]]]]:
        for step in range(done // self.gradient_accumulation_steps, self.num_steps):
            for slot, batches in enumerate(self.plan_step(step, epoch)):
                number = step * self.gradient_accumulation_steps + slot
                if number >= done:
                    yield number, [batches[rank] for rank in ranks]

    @cached_property  # loaders ask for the state at every batch
    def _identity(self) -> dict[str, Any]:
        hashed = hashlib.sha256(self.lengths.tobytes())
        for values, _ in self._caps.values():
            hashed.update(values.tobytes())
        return {
            "lengths": hashed.hexdigest(), "samples_per_step": self.samples_per_step, "num_replicas": self.num_ranks,
            "gradient_accumulation_steps": self.gradient_accumulation_steps, "drop_last": self._drop,
            "seed": self.seed if self.shuffle else None, "caps": {name: cap for name, (_, cap) in self._caps.items()},
            **{name: str(value) for name, value in self._options.items()},
        }  # fmt: skip
