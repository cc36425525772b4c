"""A step plan as integers, which the rank that plans for all broadcasts, and the plan made from them on the others."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.cuts.rooms import ROOMS
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan
from balancer.problem.phases import PhaseItems
from balancer.problem.placement import Placement
from balancer.step_planner import Step, encoder_problem, finished
from solvers.bounds import Bound
from solvers.types import SolveStatus

_CERTIFICATE = ("lower_bound", "bound_name", "num_slots", "placement", "fell_back")


def as_words(header: Any, arrays: Iterable[NDArray[Any]] = ()) -> NDArray[np.int64]:
    """Return what JSON can hold, and arrays of integers behind it, as words of 8 bytes: one collective carries all."""
    text = json.dumps(header, separators=(",", ":")).encode()
    in_words = np.frombuffer(text + b"\0" * (-len(text) % 8), dtype="<i8")
    return np.concatenate([[len(text)], in_words, *arrays]).astype(np.int64)


def from_words(words: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
    """Return the header of words that :func:`as_words` made, and the integers behind it."""
    size = int(words[0])
    end = 1 + -(-size // 8)
    return json.loads(words[1:end].astype("<i8").tobytes()[:size]), words[end:]


def words_of_plan(plan: StepPlan) -> NDArray[np.int64]:
    """Return the placements and certificates of a plan: int64[k]."""
    described = {
        name: {key: getattr(phase.plan, key) for key in _CERTIFICATE}
        | {"status": phase.plan.status.value, "beside": [array.tolist() for array in phase.plan.beside]}
        for name, phase in plan.phases.items()
    }
    plans = [phase.plan for phase in plan.phases.values()]
    placed = [(each.rank_of_sample, each.target.position_of_sample, each.slot_of_sample) for each in plans]
    return as_words(described, chain.from_iterable(placed))


def plan_of_words(words: NDArray[np.int64], step: Step) -> StepPlan:
    """Return the plan that another rank made of the same step."""
    started = time.perf_counter()
    described, rest = from_words(words)
    plans = {}
    for items in step.items:
        said = described[items.phase.name]
        plans[items.phase.name] = _plan_of(step, items, said, rest[: 3 * len(items.lengths)])
        rest = rest[3 * len(items.lengths) :]
    return finished(step, plans, "orchestrated", started)


def _plan_of(step: Step, items: PhaseItems, said: Mapping[str, Any], words: NDArray[np.int64]) -> DispatchPlan:
    """Put the plan of a phase together from its certificate, and rank, position and slot of each item."""
    rank, position, slot = words.astype(np.int32).reshape(3, -1)
    target = Placement.checked(rank, step.setup.topology_of(items.phase.name).num_ranks, position)
    problem = step.problem(items)
    # Encoders have the slots of the last phase, which only the plan says.
    if items is not step.items[-1]:
        problem = encoder_problem(step, items, said["num_slots"])
    beside = [np.array(array, dtype=np.int32) for array in said["beside"]]
    placed = ROOMS[problem.cut.name].kind.put_together(problem, target, slot.copy(), said["num_slots"], *beside)
    # Not proven anew: the rank that planned has proven it, and the others would each search for as long.
    bound = Bound(said["lower_bound"], said["bound_name"])
    plan = placed.finished(bound, step.settings, status=SolveStatus(said["status"]), fell_back=said["fell_back"])
    return replace(plan, placement=said["placement"])
