"""Planning in agreement: every rank plans, or one plans for all; and no payload moves before all hold the same plan."""

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

from balancer._version import __version__
from balancer.executor.errors import PeerError, PlanMismatchError, listed, outside_majority
from balancer.executor.gathering import Gathered
from balancer.executor.peers import NOTHING, Peers
from balancer.plan.step_plan import StepPlan
from balancer.planning.step import plan_step
from balancer.planning.told import plan_of_words, words_of_plan
from balancer.problem.setup import Setup
from solvers import USES_CLOCK

__all__ = ["PLANNING", "agreed_plan", "check_planning"]

PLANNING = ("replicate", "broadcast")
"""Who plans: every rank the same, or one rank for all."""

_OK, _FAILED, _SPLIT = range(3)
_PARTS = {"package version": slice(1, 5), "lengths or settings": slice(5, 9), "plan": slice(9, 13)}


def package_version() -> str:
    """Return what ranks must have in common to plan alike."""
    return __version__


def check_planning(planning: str, setup: Setup) -> str:
    """Return who plans, or raise ValueError if that cannot go well."""
    if planning not in PLANNING:
        raise ValueError(f"planning must be one of {', '.join(PLANNING)}, got {planning!r}")
    method = setup.settings.method
    if planning == "replicate" and method in USES_CLOCK:
        raise ValueError(
            f"method {method!r} reads the clock, so that ranks would find different plans; use planning='broadcast'"
        )
    return planning


def agreed_plan(peers: Peers, setup: Setup, gathered: Gathered, planner_rank: int | None) -> StepPlan:
    """Plan a step so that every rank holds the same plan.

    Parameters
    ----------
    peers : Peers
    setup : Setup
    gathered : Gathered
    planner_rank : int or None
        The rank that plans for all; None: each rank does.

    Raises
    ------
    PlanMismatchError
        On every rank, naming those that differ from the majority.
    PeerError
        Where another rank could not plan and this one could.
    Exception
        Whatever the planner raises.
    """
    plan, told = (None, None) if planner_rank is None else _planned_by(peers, setup, gathered, planner_rank)
    outcome: StepPlan | Exception
    try:
        if told is not None:
            outcome = plan_of_words(told, gathered.step(setup))
        else:
            outcome = planned(setup, gathered) if plan is None else plan
    except Exception as error:  # whatever it is, the other ranks must hear of it before they wait for payload
        outcome = error
    return _agreed(peers, setup, gathered, outcome)


def planned(setup: Setup, gathered: Gathered) -> StepPlan:
    """Plan a step on this rank."""
    with gathered.located():
        return plan_step(gathered.step(setup))


def _digest(setup: Setup, gathered: Gathered) -> bytes:
    """SHA-256 of all that a plan depends on: the setup, and what the ranks told."""
    digest = hashlib.sha256(json.dumps(setup.to_json(), sort_keys=True).encode())
    for words in gathered.words:
        digest.update(np.ascontiguousarray(words, dtype="<i8").data)
    return digest.digest()


def _planned_by(
    peers: Peers, setup: Setup, gathered: Gathered, planner: int
) -> tuple[StepPlan | None, NDArray[np.int64] | None]:
    """Let one rank plan: it returns its plan, the others what they are told. They wait as long as the timeout is."""
    if peers.rank != planner or not peers.leads:
        told = peers.broadcast(NOTHING, planner)
        if told[0] == _FAILED:
            raise PeerError(f"{listed([planner])} planned for all and failed, with an error of its own", [planner])
        return None, told[1:]
    try:
        plan = planned(setup, gathered)
    except Exception:
        peers.broadcast(np.asarray([_FAILED]), planner)
        raise
    peers.broadcast(np.concatenate(([_OK], words_of_plan(plan))), planner)
    return plan, None


def _agreed(peers: Peers, setup: Setup, gathered: Gathered, outcome: StepPlan | Exception) -> StepPlan:
    """Compare (version, digest of the inputs, digest of the plan) over all ranks in one small collective."""
    mine = np.zeros(13, dtype=np.int64)
    mine[0] = _FAILED if isinstance(outcome, Exception) else _OK
    mine[_PARTS["package version"]] = _words(hashlib.sha256(package_version().encode()).digest())
    mine[_PARTS["lengths or settings"]] = _words(_digest(setup, gathered))
    if not isinstance(outcome, Exception):
        mine[_PARTS["plan"]] = _words(bytes.fromhex(outcome.digest()))
    if peers.replica is not None:
        row = _compared(peers.replica.gather(mine))
        mine = row if peers.leads else mine
    rows = peers.gather(mine)
    if isinstance(outcome, Exception):
        raise outcome
    _check_states(rows[:, 0])
    odd = outside_majority([tuple(row.tolist()) for row in rows])
    if odd:
        usual = rows[next(rank for rank in range(len(rows)) if rank not in odd)]
        what = [name for name, part in _PARTS.items() if any((rows[rank][part] != usual[part]).any() for rank in odd)]
        raise PlanMismatchError(
            f"{listed(odd)} of {len(rows)} differ from the majority in {' and '.join(what)}; nothing has been "
            f"exchanged. This rank has version {package_version()}; install one version everywhere, and give every "
            "rank the same settings", odd,
        )  # fmt: skip
    return outcome


def _compared(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the leader's row, with a status that tells whether its replica peers have the same."""
    row = rows[0].copy()
    if (rows[:, 0] == _FAILED).any():
        row[0] = _FAILED
    elif (rows != rows[0]).any():
        row[0] = _SPLIT
    return row


def _check_states(states: NDArray[np.int64]) -> None:
    def among(state: int) -> list[int]:
        found: list[int] = np.flatnonzero(states == state).tolist()
        return found

    if failed := among(_FAILED):
        raise PeerError(f"{listed(failed)} could not plan, each with an error of its own", failed)
    if split := among(_SPLIT):
        raise PlanMismatchError(f"replica peers of {listed(split)} hold different plans, lengths or versions", split)


def _words(digest: bytes) -> NDArray[np.int64]:
    words: NDArray[np.int64] = np.frombuffer(digest, dtype="<i8").astype(np.int64)
    return words
