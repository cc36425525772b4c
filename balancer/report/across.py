"""What it does that samples run early or late: to the time of steps, and to training."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SUMS = ("steps", "even_share", "floor", "chosen_floor", "lower_bound")
_LARGEST = ("largest_displacement", "long_from")


def joined(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers of all epochs, or their parts, together: sums of costs, the largest displacement, else means.

    Means are of steps.
    """
    steps = max(1, sum(epoch["steps"] for epoch in epochs))
    found: dict[str, Any] = {name: sum(epoch[name] for epoch in epochs) for name in _SUMS}
    for name in epochs[0].keys() - set(_SUMS):
        values = [epoch[name] for epoch in epochs]
        if name in _LARGEST:
            found[name] = max(values)
        elif isinstance(values[0], float):
            found[name] = _of_steps(values, epochs, steps)
        else:  # before and after
            found[name] = [_of_steps(of, epochs, steps) for of in zip(*values, strict=True)]
    even = found["even_share"]
    parts = "imbalance_ratio_without", "imbalance_ratio_of_steps", "imbalance_ratio_best_possible"
    for name, part in zip(("floor", "chosen_floor", "lower_bound"), parts, strict=True):
        found[part] = found[name] / even if even else 1.0
    # Sorted, because the names come from a set, which has another order in each process.
    return dict(sorted(found.items()))


def _of_steps(values: Sequence[float], epochs: Sequence[Mapping[str, Any]], steps: int) -> float:
    # Not weighted: a single value must come back exactly, without rounding.
    if len(values) == 1:
        return float(values[0])
    total: float = sum(value * epoch["steps"] for value, epoch in zip(values, epochs, strict=True))
    return total / steps


def across_lines(epochs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say in sentences what was moved, what it can gain, and what it does to training."""
    found = joined(epochs)
    if not found["moved"]:
        yield (
            f"across steps: no sample moved; steps take at least {found['imbalance_ratio_without']:.3f} of the even "
            f"share, and {found['imbalance_ratio_best_possible']:.3f} whatever is moved within the limits (proven)."
        )
        return
    yield (
        f"across steps: {_percent(found['moved'])} of the samples run in another step than the one they were drawn "
        f"for, {found['mean_displacement']:.2f} steps away on average over all samples, "
        f"{found['largest_displacement']} at most; rank correlation with length {found['drift']:.2f}."
    )
    yield (
        f"without deferral steps take at least {found['imbalance_ratio_without']:.3f} of the even share, these steps "
        f"{found['imbalance_ratio_of_steps']:.3f}, any within the limits {found['imbalance_ratio_best_possible']:.3f} "
        "(proven)."
    )
    (before, after), (spread, spread_after) = found["long_share"], found["long_spread"]
    yield (
        f"to training: long samples, of {found['long_from']:,} and more, have {_percent(before)} +- {_percent(spread)} "
        f"of a step's tokens before and {_percent(after)} +- {_percent(spread_after)} after, "
        f"{_percent(found['largest_long_share'][1])} at most. Their tokens weigh {found['token_mean_weight']:.2f} of "
        f"what they did where a step's loss is divided by its tokens, {found['sample_mean_weight']:.2f} where by its "
        "samples, and exactly 1 where by a constant. Clipping and Adam's moments see the gathering in any case."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
