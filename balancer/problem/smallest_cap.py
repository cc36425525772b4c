"""The smallest cap that is enough, when one was too small; it is named in the error."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cost import CostModel
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import MAX_TOKENS, Constraints
from solvers.errors import InfeasibilityCertificate, InfeasibleError, Named, SolverError, braced

_BUDGET = 0.01  # seconds' worth of looking for a plan that needs little room


def least_cap(amounts: NDArray[np.int64], num_bins: int) -> int:
    """Return a cap below which `num_bins` bins cannot hold these amounts: the largest, or the mean of a bin. O(n)."""
    if not len(amounts):
        return 0
    mean: int = -(-sum(amounts.tolist()) // num_bins)
    return max(int(amounts.max()), mean)


def needed(
    name: str, amounts: NDArray[np.int64], num_bins: int, cap: int, padded: bool = False, **keywords: Any
) -> str:
    """Say which cap is enough when one is proven, or seems, too small.

    Returns a remedy, as errors take them; empty where the other constraints alone cannot be kept, as far as is known.
    These are the keywords, as :func:`solvers.partition` takes them. `name` is the cap's, as a template: in braces where
    other interfaces may have another name for it. With `padded` a bin holds its number of items times the largest.
    """
    try:
        if padded:
            counts = {word: keywords[word] for word in ("equal_counts", "min_items") if word in keywords}
            found = solvers.padded(amounts, num_bins, **counts)
        else:
            found = solvers.partition(amounts, num_bins, "auto", _BUDGET, stop_at=0, **keywords)
    except (ValueError, SolverError):
        return ""
    least, enough = max(found.lower_bound, 1), max(found.makespan, 1)
    # A plan within the cap was found: something else is in the way, and a larger cap would not help.
    if enough <= cap:
        return ""
    does = "which" if least >= enough else f"and {enough}"
    return f"for this batch {name} must be at least {min(max(least, cap + 1), enough)}, {does} is enough"


def with_smallest_cap(
    error: SolverError, caps: Sequence[tuple[str, NDArray[np.int64], int]], keywords: dict[str, Any], num_ranks: int
) -> SolverError:
    """Return an error that may be about a cap with the cap that would do under the other constraints.

    Each cap has a name, amounts and a limit; `keywords` are all constraints, as :func:`solvers.partition` takes them.
    """
    certificate = getattr(error, "certificate", None)
    only = 0 if len(caps) == 1 else None
    index = only if certificate is None else certificate.quantity
    if index is None or index >= len(caps):
        return error
    name, amounts, limit = caps[index]
    # Speeds and loads change no sum of tokens; without them the cap asked for is the least that is proven.
    others = {word: value for word, value in keywords.items() if word not in ("initial_loads", "speeds")}
    for word in ("sizes", "caps"):
        rest = np.delete(others.pop(word), index, axis=-1)
        if len(caps) > 1:
            others[word] = rest
    what = f"{{{name}}}" if name == "max_tokens_per_rank" else f"the cap on {braced(name)}"
    return error.with_remedy(needed(what, amounts, num_ranks, limit, **others))


def check_cap(batch: GlobalBatch, num_ranks: int, constraints: Constraints, cost: CostModel) -> None:
    """Raise InfeasibleError if a sample, or all of them together, exceed the cap on a rank's tokens."""
    cap = constraints.max_tokens_per_rank
    if cap is None or least_cap(batch.lengths, num_ranks) <= cap:
        return
    others = replace(constraints, max_tokens_per_rank=None, initial_loads=None, rank_speeds=None)
    keywords = others.solver_keywords(batch.lengths)
    remedy = needed(f"{{{MAX_TOKENS}}}", batch.lengths, num_ranks, cap, cost.padded, **keywords)
    check_longest(batch, MAX_TOKENS, cap, remedy)
    total, room = sum(batch.lengths.tolist()), cap * num_ranks
    raise InfeasibleError(
        "the batch has {total} tokens, {excess} more than {count} ranks hold with {max_tokens_per_rank} = {cap}",
        InfeasibilityCertificate(MAX_TOKENS, range(len(batch.lengths)), range(num_ranks), total, room), remedy,
        total=total, excess=total - room, count=num_ranks, cap=cap,
    )  # fmt: skip


def check_longest(batch: GlobalBatch, name: str, cap: int, *remedies: str) -> None:
    """Raise InfeasibleError if a sample is longer than a cap by this name."""
    lengths = batch.lengths
    if len(lengths) and lengths.max() > cap:
        sample = int(np.argmax(lengths))
        raise InfeasibleError(
            f"{{sample}} has length {lengths[sample]}, {lengths[sample] - cap} more than {{{name}}} = {cap}",
            InfeasibilityCertificate(name, [sample], [], int(lengths[sample]), cap), remedies,
            sample=Named("sample", sample),
        )  # fmt: skip
