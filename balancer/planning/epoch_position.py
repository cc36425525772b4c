"""Where a run stands in an epoch: how many of its samples are done, whoever trained them.

Everything that saves its place (batch samplers, loaders that dispatch) saves a :class:`Position`. It counts samples in
the epoch's order and says nothing of ranks, so that a run goes on from it on other ranks, nodes or micro-steps.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from solvers.errors import UsageError, braced

VERSION = 2
"""Of saved positions; 1 were those of releases until 0.2, which counted batches of a number of ranks."""

_UNCOUNTED = ({"epoch", "batches", "of"}, {"steps", "ended", "loader"})  # what they held


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two batches of an epoch."""

    epoch: int | None = 0  # None where nobody has said
    samples: int = 0  # of the epoch's order that are done, in whole steps; -1 where a trainer skipped some uncounted
    begun: int = 0  # micro-steps that were run of the step that comes next
    batches: int = 0  # that each rank has had in this epoch, as a trainer counts them

    def saved(self, of: Mapping[str, Any]) -> dict[str, Any]:
        """Return it as JSON, with a fingerprint of the data and order that it is a place in, by name."""
        state = {"version": VERSION, **asdict(self), "of": dict(of)}
        return state | {"digest": _digest(state)}

    @classmethod
    def loaded(cls, state: Any) -> Self:
        """Read what :meth:`saved` returned, whatever else stands beside it.

        Raises
        ------
        ValueError
            Anything else; a state of another version.
        """
        found = set(state) if isinstance(state, Mapping) else set()
        if "version" not in found and any(names <= found for names in _UNCOUNTED):
            raise UsageError(
                "the state is of version 1, which counts batches of a number of ranks; this release reads version "
                "{version}, which counts samples",
                "begin a new epoch, or end this one with the release that saved it", version=VERSION,
            )  # fmt: skip
        names = ("version", *(each.name for each in fields(cls)), "of", "digest")
        if missing := [name for name in names if name not in found]:
            raise UsageError(
                "state must be what state_dict() returned, got {state}; it has no {missing}",
                state=repr(state)[:80], missing=", ".join(missing),
            )  # fmt: skip
        # A state that is no JSON has no digest: it was changed, whatever its version says.
        digest = _digest({name: state[name] for name in names[:-1]})
        if digest is not None and state["version"] != VERSION:
            raise UsageError(
                "the state is of version {theirs}; this release reads version {version}",
                theirs=repr(state["version"])[:40], version=VERSION,
            )  # fmt: skip
        if digest is None or not isinstance(state["digest"], str) or state["digest"] != digest:
            raise UsageError("the state was changed after state_dict() returned it: its digest is of another")
        return cls(**{each.name: state[each.name] for each in fields(cls)})


def check_same(state: Mapping[str, Any], of: Mapping[str, Any]) -> None:
    """Refuse a state that was loaded, if it is of other data or another order than `of`; name what differs."""
    theirs = state["of"]
    for name in dict.fromkeys((*of, *theirs)):
        if theirs.get(name) != of.get(name):
            raise UsageError(
                "the state is of other batches: its {name} is {theirs}, here it is {mine}",
                ("make the sampler of the same data in the same order", "or begin a new epoch"),
                name=braced(name), theirs=repr(theirs.get(name)), mine=repr(of.get(name)),
            )  # fmt: skip


def _digest(state: Mapping[str, Any]) -> str | None:
    """Return a digest of a state; None of one that is no JSON."""
    try:
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]
    except (TypeError, ValueError, RecursionError):
        return None


def begun_anew(position: Position) -> Position:
    """Return the beginning of a step that was cut short, with a warning: its gradients are saved nowhere."""
    if position.begun:
        warnings.warn(
            f"the state was saved within an optimizer step of epoch {position.epoch}, after {position.begun} of its "
            f"micro-steps; it is begun anew behind sample {position.samples} of the epoch, so that their samples run "
            "again",
            stacklevel=3,
        )
    return Position(position.epoch, position.samples, 0, position.batches)
