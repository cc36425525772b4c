"""All ways to place a few items under caps, for when a search has found none: then there is one, or proof of none."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

State = TypeVar("State", bound=tuple[Any, ...])

MOST_ITEMS = 16
"""A problem is small up to so many items. Beyond, the states below nearly always run out, and trying was in vain."""

_MOST_STATES = 20_000
"""States that are looked at before a problem counts as large: a second of plain Python at most, where an error
would be raised. Eight items of any sizes in six cells are done by then, and more where they repeat or room is short."""


def first_way(
    start: State,
    num_items: int,
    ways: Callable[[State, int], Iterator[State]],
    key: Callable[[State], Hashable],
) -> tuple[State | None, bool]:
    """Place items 0, 1, ... one after another, depth first; no state is gone on from twice.

    Parameters
    ----------
    start : State
        In which no item is placed.
    num_items : int
    ways : function
        From a state and the next item to the states in which that is placed too.
    key : function
        From a state to what the rest depends on. States of one key, which hold the same items in cells that are alike,
        are tried once: so neither names of cells nor items of the same size multiply.

    Returns
    -------
    State or None
        One in which all items are placed.
    bool
        Whether it is proven that there is none. Otherwise there are too many ways to try them all.

    Examples
    --------
    >>> def ways(rooms, item):
    ...     for at, room in enumerate(rooms):
    ...         if room >= [3, 3, 2][item]:
    ...             yield (*rooms[:at], room - [3, 3, 2][item], *rooms[at + 1 :])
    >>> first_way((5, 3), 3, ways, lambda rooms: tuple(sorted(rooms)))
    ((0, 0), False)
    >>> first_way((4, 4), 3, ways, lambda rooms: tuple(sorted(rooms)))
    (None, True)
    """
    if num_items > MOST_ITEMS:
        return None, False
    seen: set[Hashable] = set()
    waiting = [iter((start,))]  # of each depth, which is how many items are placed: states to go on from
    while waiting:
        state = next(waiting[-1], None)
        if state is None:
            waiting.pop()
            continue
        placed = len(waiting) - 1
        if placed == num_items:
            return state, False
        # With the same items placed in cells that are alike, the rest goes on alike: it was in vain already.
        if (found := (placed, key(state))) not in seen:
            if len(seen) == _MOST_STATES:
                return None, False
            seen.add(found)
            waiting.append(ways(state, placed))
    return None, True
