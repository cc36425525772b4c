"""Planning in agreement: every rank plans, or one plans for all; and no payload moves before all hold the same plan."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from balancer._version import __version__
from balancer.described import as_dict
from balancer.executor.alike import attempt, held_by_all
from balancer.executor.broadcast import plan_of_words, words_of_plan
from balancer.executor.errors import PlanMismatchError, against_majority, by_text, listed
from balancer.executor.fields import Column
from balancer.executor.gathering import Gathered
from balancer.executor.peers import NOTHING, Peers
from balancer.plan.step_plan import StepPlan
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.ragged import Ragged
from balancer.problem.setup import Setup
from balancer.step_planner import plan_step
from solvers import USES_CLOCK
from solvers.errors import WordedError

__all__ = ["PLANNING", "agreed_plan", "check_planning"]

PLANNING = ("replicate", "broadcast")
"""Who plans: every rank the same, or one rank for all."""


def check_planning(planning: str, setup: Setup) -> None:
    """Raise ValueError if who plans is none of those there are, or that cannot go well."""
    if planning not in PLANNING:
        raise ValueError(f"planning must be one of {', '.join(PLANNING)}, got {planning!r}")
    method = setup.settings.method
    if planning == "replicate" and method in USES_CLOCK:
        raise ValueError(
            f"method {method!r} reads the clock, so that ranks would find different plans; use planning='broadcast'"
        )


def agreed_plan(peers: Peers, setup: Setup, gathered: Gathered, planner_rank: int | None) -> StepPlan:
    """Plan a step so that every rank holds the same plan: each rank plans, or the one given plans for all.

    Raises
    ------
    PlanMismatchError
        On every rank, naming those that differ from the majority, and in what.
    PeerError
        Where another rank could not plan and this one could.
    Exception
        Whatever the planner raises.
    """
    plan, failure = None, None
    if planner_rank is None or (peers.rank == planner_rank and peers.leads):
        plan, failure = attempt(lambda: planned(setup, gathered))
    if planner_rank is not None:  # who waits as long as the timeout is
        words = peers.broadcast(NOTHING if plan is None else words_of_plan(plan), planner_rank)
        if plan is None and failure is None and len(words):
            plan, failure = attempt(lambda: plan_of_words(words, gathered.step(setup)))
    return _agreed(peers, setup, gathered, plan, failure)


def planned(setup: Setup, gathered: Gathered) -> StepPlan:
    """Plan a step on this rank; errors that name a sample say on which rank it is."""
    try:
        return plan_step(gathered.step(setup))
    except WordedError as error:
        raise error.in_words(gathered.wording()) from None


def _agreed(
    peers: Peers, setup: Setup, gathered: Gathered, plan: StepPlan | None, failure: Exception | None
) -> StepPlan:
    """Compare what all ranks planned with, and their plans, by a digest in one small collective."""
    # Inputs too: ranks whose inputs differ may find one plan by chance, and would then expect other bytes.
    held = {"package version": __version__, **_inputs(setup, gathered)}
    held["plan"] = None if plan is None else plan.digest()
    digest = np.frombuffer(hashlib.sha256(json.dumps(held).encode()).digest(), dtype="<i8")
    mine = np.concatenate(([plan is None], digest)).astype(np.int64)
    rows = mine[None] if peers.replica is None else peers.replica.gather(mine)
    # Replica peers that differ among themselves say that they have no plan.
    rows = peers.gather(rows[0] if (rows == rows[0]).all() else np.ones_like(mine))
    if plan is not None and not rows[:, 0].any() and (rows == rows[0]).all():
        return plan
    # As some rank did not agree, all of them say more.
    raise _mismatch(held_by_all(peers, held, failure, "could not plan"))


def check_groups(peers: Peers, setup: Setup) -> None:
    """Raise PlanMismatchError unless all ranks are about to make the same process groups. All peers call this."""
    held_by_rank = held_by_all(peers, dict(_settings(setup)))
    asked = [held for of_rank in held_by_rank for held in of_rank]
    of_groups = ("setting 'cut.degrees'", "setting 'cut.degree'",
                 "setting 'sequence_parallel'")  # fmt: skip
    degrees = [{name: value for name, value in held.items() if name.startswith(of_groups)} for held in asked]
    nodes = [held["setting 'node_sizes'"] for held in asked]
    layouts = [(held.get("setting 'layouts'"), held.get("setting 'gpus'")) for held in asked]
    unlike = degrees.count(degrees[0]) < len(asked) or layouts.count(layouts[0]) < len(asked)
    if unlike or (degrees[0] and nodes.count(nodes[0]) < len(asked)):
        raise _mismatch(held_by_rank)


def _mismatch(held_by_rank: Sequence[Sequence[Mapping[str, Any]]]) -> PlanMismatchError:
    """Return the error of ranks that hold no common plan, given what the replica peers of each rank hold."""
    held = [of_rank[0] for of_rank in held_by_rank]
    unlike = {rank: _difference(of_rank[0], of_rank) for rank, of_rank in enumerate(held_by_rank)}
    if split := {rank: what for rank, what in unlike.items() if what}:
        text = by_text(split, lambda ranks, what: f"replica peers of {listed(ranks)} differ in {what}")
        return PlanMismatchError(text, list(split))
    usual, odd = against_majority({rank: json.dumps(one) for rank, one in enumerate(held)})
    differing = {rank: _difference(json.loads(usual), [held[rank]]) for rank in odd}
    text = by_text(
        differing,
        lambda of, what: f"{listed(of)} of {len(held)} differ{'s' * (len(of) == 1)} from the majority in {what}",
    )
    advice = "install one version everywhere, and give every rank the same settings"
    return PlanMismatchError(f"{text}; nothing has been exchanged: {advice}", list(odd))


@lru_cache(maxsize=8)
def _settings(setup: Setup) -> Mapping[str, Any]:
    """Return all settings by the names that errors call them by."""
    given, cut = setup.to_json(), setup.settings.cut
    of_cut = cut.to_json() | as_dict(cut, all_keys=True)
    planned = as_dict(setup.settings, all_keys=True) | {"cut": of_cut.pop("kind")}
    planned |= {f"cut.{name}": value for name, value in of_cut.items()}
    laid_out = {shown: given[name] for name, shown in (("layout", "layouts"), ("gpus", "gpus")) if name in given}
    found = {f"setting {name!r}": value for name, value in {**given["topology"], **planned, **laid_out}.items()}
    for phase in setup.phases:
        where = "" if phase.name == SINGLE_PHASE else f" of phase {phase.name!r}"
        found |= {f"setting {name!r}{where}": value for name, value in as_dict(phase, all_keys=True).items()}
    return found


def _inputs(setup: Setup, gathered: Gathered) -> dict[str, Any]:
    """Return by name all that a plan and its exchange depend on: settings as they are, columns by their digests."""
    found = {**_settings(setup), "numbers of samples": _sha(gathered.home.offsets)}
    found |= {f"field {name!r}": f"{gathered.specs[name]} {_sha(rows)}" for name, rows in gathered.rows.items()}
    return found | {f"lengths[{name!r}]": _sha(column) for name, column in gathered.columns.items()}


def _difference(usual: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Say what some rank holds otherwise than usual: settings and versions as they are, of all else the name."""
    found: dict[str, str] = {}
    for other in others:
        for name in {**usual, **other}:
            if other.get(name) != usual.get(name):
                shown = name.startswith(("setting", "package"))
                found[name] = f"{name} ({other.get(name)!r}, not {usual.get(name)!r})" if shown else name
    inputs = [text for name, text in found.items() if name != "plan"]
    return " and ".join(inputs or found.values())  # other inputs make other plans


def _sha(column: Column) -> str:
    digest = hashlib.sha256()
    for array in (column.values, column.offsets) if isinstance(column, Ragged) else (column,):
        digest.update(np.ascontiguousarray(array, dtype="<i8").data)
    return digest.hexdigest()
