"""Documents of a pack, their masks, and what a rank may hold, checked once."""

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers.arguments import as_costs, as_count, as_integer, as_share
from solvers.context.masks import PADDING, Masks, as_masks, sees_from, work_before
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, UsageError
from solvers.groups import read_only

Ints = NDArray[np.int64]

_BLOCK = 128
"""Tokens of a kernel's tile: documents are cut at its multiples, where nothing else is asked for."""

# Of so many blocks at least a rank's share is to be: with fewer there is no cut at which short documents are even.
_BLOCKS_OF_A_RANK = 16

MOST_TOKENS = 2**27
"""Tokens of a pack: tables of the bounds are as long as its longest document, and squares of it are far below int64."""


class Problem(NamedTuple):
    """What layouts, bounds and search read; arrays are read-only."""

    lengths: Ints  # int64[n]; padding, if there is any, is the last document
    kinds: Ints  # int64[m, n], of masks
    sizes: Ints  # int64[m, n]
    weights: Ints  # int64[m]
    num_ranks: int
    ranks_per_node: int  # num_ranks where there are no nodes
    fewest: int  # tokens of a rank
    most: int
    block: int

    @property
    def tokens(self) -> int:
        """T, padding included."""
        return int(self.lengths.sum())

    @property
    def work(self) -> Ints:
        """Pairs of query and key of each mask: int64[m]."""
        whole = parts_of(self, np.arange(len(self.lengths)), np.zeros_like(self.lengths), self.lengths)
        return np.asarray(whole.work.sum(axis=1))


def as_problem(
    lengths: ArrayLike, num_ranks: int, ranks_per_node: int | None, block: int | None, masks: Mapping[str, int] | None,
    token_slack: int, pad: bool,
) -> Problem:  # fmt: skip
    """Check arguments as :func:`solvers.context_shards` has them."""
    given, _, total = as_costs(lengths, "lengths")
    ranks = as_count("num_ranks", num_ranks)
    node = ranks if ranks_per_node is None else as_count("ranks_per_node", ranks_per_node)
    slack = as_integer("token_slack", token_slack)
    step = None if block is None else as_count("block", block)
    if not len(given):
        raise ArgumentError("lengths", "hold a document at least", "none")
    if (given == 0).any():
        raise ArgumentError("lengths", "be >= 1", 0, int(np.argmin(given)), remedy="leave empty documents out")
    if ranks % node:
        raise ArgumentError("ranks_per_node", f"divide the {ranks} ranks", node)
    found = as_masks(masks, len(given))
    padding = -total % ranks
    if padding and pad:
        given, total = np.append(given, padding), total + padding
        more = np.full((len(found.weights), 1), PADDING), np.zeros((len(found.weights), 1), dtype=np.int64)
        found = Masks(np.hstack((found.kinds, more[0])), np.hstack((found.sizes, more[1])), found.weights)
    fewest, most = max(0, -(-total // ranks) - slack), total // ranks + slack
    if fewest > most:
        raise ArgumentError(
            "lengths", f"sum up to a multiple of the {ranks} ranks", total,
            remedy=(f"{{pad=True}} adds the {padding} tokens", f"{{token_slack}} = {1} lets ranks differ"),
        )  # fmt: skip
    if total >= MOST_TOKENS:
        raise ArgumentError("lengths", f"sum up to less than {MOST_TOKENS}", total)
    # Rows received by all ranks in all layers: the largest sum there is.
    if total * ranks * int(found.weights.sum()) >= 2**60:
        raise UsageError("tokens of {lengths} times {num_ranks} times all layers of {masks} must be < 2**60")
    kinds, sizes, weights = (read_only(np.ascontiguousarray(each)) for each in found)
    return Problem(read_only(given), kinds, sizes, weights, ranks, node, fewest, most, step or block_of(total, ranks))


def block_of(tokens: int, num_ranks: int) -> int:
    """Return of how many tokens a block is where nobody says it: 128, or less where ranks have few."""
    block = _BLOCK
    while block > 1 and tokens < num_ranks * block * _BLOCKS_OF_A_RANK:
        block //= 2
    return block


def caps_of(problem: Problem, eps: Fraction | float | str) -> Ints:
    """Return what each mask's work of a rank should not exceed: the mean and a share of it, int64[m]."""
    share = as_share("eps", eps)
    if share > 1000:
        raise ArgumentError("eps", "be <= 1000", str(eps))
    ranks = problem.num_ranks
    # In fractions: `eps` is a decimal that callers wrote, and a cap must not be one pair too low by rounding.
    return np.array([max(-(-int(s) // ranks), int((1 + share) * int(s) / ranks)) for s in problem.work], dtype=np.int64)


def most_rows_held(problem: Problem, max_rows_held: int | None) -> int:
    """Return how many rows of keys a rank may hold; InfeasibleError if they are fewer than some rank's own."""
    if max_rows_held is None:
        return problem.tokens
    rows, own = as_count("max_rows_held", max_rows_held), -(-problem.tokens // problem.num_ranks)
    if rows < own:
        raise InfeasibleError(
            "no layout keeps {max_rows_held} = {rows}: some rank holds {own} rows of its own",
            InfeasibilityCertificate("max_rows_held", (), (), own, rows), "raise it to {own} at least",
            rows=rows, own=own,
        )  # fmt: skip
    return rows


class Parts(NamedTuple):
    """What parts of documents compute, and the keys that they see."""

    work: Ints  # int64[m, p]: pairs of query and key
    low: Ints  # int64[m, p]: the first key; the last is that of the part's last query


@kernel
def _fill_parts(problem, document, start, stop, found):
    for k in range(len(problem.weights)):
        for p in range(len(document)):
            d = document[p]
            kind, size = problem.kinds[k, d], problem.sizes[k, d]
            found.work[k, p] = work_before(kind, size, stop[p]) - work_before(kind, size, start[p])
            found.low[k, p] = sees_from(kind, size, start[p])


def parts_of(problem: Problem, document: Ints, start: Ints, stop: Ints) -> Parts:
    """Return what positions ``start`` to ``stop - 1`` of documents compute and see, none of them empty."""
    found = Parts(*(np.zeros((len(problem.weights), len(document)), dtype=np.int64) for _ in range(2)))
    _fill_parts(problem, *map(read_only, (document, start, stop)), found)
    return found
