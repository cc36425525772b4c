"""What every result holds: frozen, arrays read-only, and equal to another by content, but for how long it took."""

import dataclasses

import numpy as np
import pytest

import solvers
from solvers import PipelineRequest, TaskRequest
from solvers.packing import cut_shares, pack, schedule_micro_batches

COSTS, TOKENS, RANKS = [5, 4, 9, 3, 7, 2], [4, 3, 12, 2, 6, 1], [0, 1, 1, 0, 1, 0]
PIPE = [[3], [1], [2], [2]], [[1, 1]], [[2, 2]]
VOLUMES, NODES = [[0, 5, 1], [4, 1, 0], [2, 0, 7]], [0, 0, 1]
RESULTS = {
    "partition": lambda: solvers.partition(COSTS, 2, "lpt"),
    "packing": lambda: pack(COSTS, 10),
    "schedule": lambda: schedule_micro_batches(COSTS, TOKENS, num_ranks=2, cap=10, over_long="own"),
    "shares": lambda: cut_shares(COSTS, TOKENS, RANKS, num_ranks=2, cap=10, over_long="own"),
    "rearrangement": lambda: solvers.rearrange(VOLUMES, NODES),
    "relocation": lambda: solvers.relocate(COSTS, RANKS, [0, 1]),
    "sequence groups": lambda: solvers.sequence_groups([[8, 2], [5, 1]], [8, 2], [1, 2], 4, 4),
    "pipeline": lambda: solvers.schedule_pipeline(*PIPE, 1, 2),
    "multiplexed": lambda: solvers.schedule_multiplexed(
        PipelineRequest(*PIPE, 1, 2), TaskRequest([0, 2], [1, 2], [2, 4], 2), time_budget=1e-4
    ),
}


@pytest.mark.parametrize("what", RESULTS)
def test_results_are_frozen_and_compare_by_content(what):
    result = RESULTS[what]()
    for each in dataclasses.fields(result):
        value = getattr(result, each.name)
        same, other = value, None
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, each.name, value)
        if isinstance(value, np.ndarray):
            assert not value.flags.writeable
            same, other = value.copy(), value + 1 if value.size else np.array([1])
        assert result == dataclasses.replace(result, **{each.name: same})
        assert (result == dataclasses.replace(result, **{each.name: other})) == (each.name == "runtime_s")
    assert result != "result"
    with pytest.raises(TypeError, match="unhashable"):
        hash(result)


def test_what_results_say_besides():
    assert RESULTS["schedule"]().num_ranks == RESULTS["shares"]().num_ranks == 2
