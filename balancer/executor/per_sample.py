"""Constraints that ask something of each sample: a trainer names columns, and every step has values in them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.plan.dispatch_plan import SINGLE_PHASE
from balancer.problem.phases import Phase, resolve_phases
from balancer.problem.ragged import Ragged

__all__ = ["PER_SAMPLE", "check_named", "numbers", "per_sample"]

PER_SAMPLE = ("keep_together", "caps", "allowed_ranks")
"""Settings that name columns."""

Columns = Mapping[str, ArrayLike | Ragged]


def check_named(settings: Mapping[str, Any]) -> None:
    """Raise TypeError if a setting that names columns does not."""
    for name in ("keep_together", "allowed_ranks"):
        if not isinstance(settings.get(name), str | None):
            raise TypeError(f"{name} must name a column given to dispatch, got {settings[name]!r}")
    caps = settings.get("caps") or {}
    if not isinstance(caps, Mapping) or not all(isinstance(column, str) for column in caps):
        raise TypeError(
            f"caps must map columns, such as 'patches' or 'text+image', to the most of a rank, got {caps!r}"
        )


def per_sample(
    settings: Mapping[str, Any], columns: Columns, given: Columns, num_samples: int, num_ranks: int
) -> dict[str, Any]:
    """Return these settings with values in place of columns, as :func:`balancer.balance` takes them.

    Parameters
    ----------
    settings : mapping
    columns : mapping of str to int64[n] or Ragged
        All that there are; of a batch of no samples there may be none.
    given : mapping of str to int64[n] or Ragged
        Those that are not the lengths of a field.
    num_samples, num_ranks : int

    Raises
    ------
    ValueError
        A column that is not there, or holds a rank that is not.
    """
    found: dict[str, Any] = {}
    if (key := settings.get("keep_together")) is not None:
        found["keep_together"] = _column("keep_together", key, given, num_samples)
        if isinstance(found["keep_together"], Ragged):
            raise ValueError(f"keep_together must name a column of one number a sample; {key!r} holds lists")
    if caps := settings.get("caps"):
        amounts = {column: numbers(columns, column) if num_samples else _NOTHING for column in caps}
        found["caps"] = {column: (amounts[column], limit) for column, limit in caps.items()}
    if (name := settings.get("allowed_ranks")) is not None:
        allowed = _column("allowed_ranks", name, given, num_samples)
        found["allowed_ranks"] = _mask(name, allowed, num_samples, num_ranks)
    return found


_NOTHING = np.empty(0, dtype=np.int64)


def numbers(columns: Columns, expression: str) -> NDArray[np.int64]:
    """Return the sum of columns, int64[n]; one that holds lists counts with all that is in them."""
    sums = {name: column.sums() if isinstance(column, Ragged) else column for name, column in columns.items()}
    return resolve_phases(sums, [Phase(SINGLE_PHASE, expression)])[0].lengths


def _column(setting: str, name: str, given: Columns, num_samples: int) -> Any:
    if num_samples == 0:
        return _NOTHING
    if name not in given:
        names = ", ".join(given) or "none"
        raise ValueError(f"{setting} must name one of the lengths given to dispatch ({names}), got {name!r}")
    return given[name]


def _mask(name: str, allowed: Any, num_samples: int, num_ranks: int) -> NDArray[np.bool_]:
    """Return where each sample may run: on the ranks that are listed for it, or on the one that is named."""
    samples, ranks = np.arange(num_samples), allowed
    if isinstance(allowed, Ragged):
        samples, ranks = allowed.row_of_value, allowed.values
    outside = (ranks < 0) | (ranks >= num_ranks)
    if outside.any():
        index = int(np.argmax(outside))
        raise ValueError(
            f"lengths[{name!r}] of sample {samples[index]} must be ranks within 0..{num_ranks - 1}, got {ranks[index]}"
        )
    mask = np.zeros((num_samples, num_ranks), dtype=np.bool_)
    mask[samples, ranks] = True
    return mask
