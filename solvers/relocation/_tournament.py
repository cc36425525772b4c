"""A tournament of ranks: who comes first by two numbers, among some of them, among those with room; O(log m) a change.

Ranks stand in a row. Every vertex of the binary tree above them knows the least pair of numbers, and the most room, of
the ranks below it. Ties go to the rank that stands first.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper
from solvers._loops import copy

_DEEPEST = 2**63 - 1


class Tournament(NamedTuple):
    """The tree: vertex v is above 2 v and 2 v + 1, and the ranks are its last row."""

    major: NDArray[np.int64]
    minor: NDArray[np.int64]
    room: NDArray[np.int64]


@helper
def hold(major, minor, room):
    """The tournament of ranks with these numbers and this room."""
    width = 1
    while width < len(major):
        width *= 2
    tree = Tournament(
        np.full(2 * width, _DEEPEST), np.full(2 * width, _DEEPEST), np.full(2 * width, np.int64(-_DEEPEST))
    )
    copy(tree.major[width:], major)
    copy(tree.minor[width:], minor)
    copy(tree.room[width:], room)
    for v in range(width - 1, 0, -1):
        _decide(tree, v)
    return tree


@helper
def _before(tree, v, other):
    major, minor = tree.major, tree.minor
    return major[v] < major[other] or (major[v] == major[other] and minor[v] < minor[other])


@helper
def _decide(tree, v):
    winner = 2 * v + 1 if _before(tree, 2 * v + 1, 2 * v) else 2 * v
    tree.major[v], tree.minor[v] = tree.major[winner], tree.minor[winner]
    tree.room[v] = max(tree.room[2 * v], tree.room[2 * v + 1])


@helper
def update(tree, rank, major, minor, room):
    """Give a rank other numbers."""
    v = (len(tree.room) >> 1) + rank
    tree.major[v], tree.minor[v], tree.room[v] = major, minor, room
    v >>= 1
    while v > 0:
        _decide(tree, v)
        v >>= 1


@helper
def first_of(tree, low, high, need):
    """The rank that comes first of those from `low` to `high` - 1 with room for `need`; -1 if none has."""
    width = len(tree.room) >> 1
    stack = np.empty((128, 2), dtype=np.int64)  # vertices, and how many ranks are below
    stack[0, 0], stack[0, 1], size = 1, width, 1
    best = -1
    while size > 0:
        size -= 1
        v, below = stack[size, 0], stack[size, 1]
        left = v * below - width
        if tree.room[v] < need or left >= high or left + below <= low:
            continue
        if best >= 0 and (_before(tree, best, v) or (not _before(tree, v, best) and left > best - width)):
            continue
        if below == 1:
            best = v
            continue
        right_first = _before(tree, 2 * v + 1, 2 * v)
        stack[size, 0], stack[size + 1, 0] = (2 * v, 2 * v + 1) if right_first else (2 * v + 1, 2 * v)
        stack[size, 1] = stack[size + 1, 1] = below // 2
        size += 2
    return best - width if best >= 0 else -1
