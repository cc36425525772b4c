"""Global batches for hypothesis to vary, and what a plan should say about them in the most naive way."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import oracles
from hypothesis import strategies as st

from balancer import Placement, RankExchange, Topology
from balancer.cost import CostModel, parse_cost

COSTS = (
    "linear",
    "linear:a=3",
    "quadratic:a=24576,b=1",
    "quadratic:a=0,b=2",
    "padded",
    "padded:a=2,b=1",
    "convolution:a=9,b=1,c=40,p=1",
)
COUNTED_METHODS = ("auto", "lpt", "karmarkar_karp")  # exact reads a clock
DTYPES = ("float32", "float16", "int8", "bool", "complex128", "<U3", "uint16", "i8,f4")

_OWN_METHODS = {"padded": ("auto", "padded"), "convolution": ("auto", "mixed")}

lengths_in = st.one_of(
    st.lists(st.integers(0, 20), max_size=24),
    st.lists(st.integers(0, 2**20), max_size=16),
    st.lists(st.sampled_from([0, 1, 7, 4096]), max_size=32),
)
nodes_in = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@st.composite
def problems(draw, lengths=lengths_in, costs=COSTS, methods=COUNTED_METHODS) -> dict[str, Any]:
    """Arguments of `balance`."""
    sizes = draw(nodes_in)
    values = draw(lengths)
    ranks = sum(sizes)
    cost = draw(st.sampled_from(costs))
    method = draw(st.sampled_from(_OWN_METHODS.get(cost.partition(":")[0], methods)))
    home = st.lists(st.integers(0, ranks - 1), min_size=len(values), max_size=len(values))
    return {
        "lengths": values,
        "num_ranks": ranks,
        "topology": Topology(sizes),
        "home_rank": draw(st.none() | home),
        "cost": cost,
        "method": method,
        "equal_counts": method != "karmarkar_karp" and draw(st.booleans()),
    }


@st.composite
def placements(draw, num_samples: int, num_ranks: int) -> Placement:
    """Any placement, in any order on its ranks."""
    ranks = draw(st.lists(st.integers(0, num_ranks - 1), min_size=num_samples, max_size=num_samples))
    order = draw(st.permutations(range(num_samples)))
    held = [0] * num_ranks
    positions = [0] * num_samples
    for sample in order:
        positions[sample] = held[ranks[sample]]
        held[ranks[sample]] += 1
    return Placement.checked(ranks, num_ranks, positions)


def naive_costs(lengths: Sequence[int], cost: str) -> list[int]:
    model = parse_cost(cost)
    return [model.a * length + model.b * length * length for length in lengths]


def naive_loads(lengths: Sequence[int], ranks: Sequence[int], num_ranks: int, cost: str | CostModel) -> list[int]:
    text = str(cost)
    if text.startswith("convolution"):
        model = parse_cost(text)
        rows = [model.c * length**model.p for length in lengths]
        padding = oracles.padded_loads_of(rows, ranks, num_ranks)
        return [
            a + b for a, b in zip(oracles.loads_of(naive_costs(lengths, text), ranks, num_ranks), padding, strict=True)
        ]
    loads = oracles.padded_loads_of if text.startswith("padded") else oracles.loads_of
    return loads(naive_costs(lengths, text), ranks, num_ranks)


def naive_optimum(lengths: Sequence[int], num_ranks: int, cost: str, equal_counts: bool) -> int:
    """The smallest makespan, by enumeration."""
    found = []
    for ranks in oracles.all_assignments(len(lengths), num_ranks):
        counts = oracles.counts_of(ranks, num_ranks)
        if not equal_counts or max(counts) - min(counts) <= 1:
            found.append(max(naive_loads(lengths, ranks, num_ranks, cost)))
    return min(found)


def payload_of(num_samples: int, dtype: str, trailing: tuple[int, ...]) -> np.ndarray:
    """One row a sample, all different as far as the dtype allows."""
    numbers = np.arange(num_samples * int(np.prod(trailing, dtype=int))).reshape(num_samples, *trailing)
    return (numbers % 100 if dtype in ("int8", "float16") else numbers % 2 if dtype == "bool" else numbers).astype(
        dtype
    )


def all_to_all(
    buffers: Sequence[np.ndarray], inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """What every rank receives: pieces by source rank, each as the sender had it; sizes must agree on both sides."""
    ranks = range(len(buffers))
    for rank in ranks:
        assert inputs[rank].sum() == len(buffers[rank]), "input splits cover the send buffer"
    pieces = [np.split(buffers[r], np.cumsum(inputs[r])[:-1]) for r in ranks]
    for rank in ranks:
        assert [len(pieces[source][rank]) for source in ranks] == outputs[rank].tolist(), "both sides agree"
    return [np.concatenate([pieces[source][rank] for source in ranks]) for rank in ranks]


def dispatch(exchanges: Sequence[RankExchange], payloads: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The recipe of RankExchange's docstring, on all ranks at once."""
    arrivals = all_to_all(
        [payload[e.send_order] for e, payload in zip(exchanges, payloads, strict=True)],
        [e.input_split_sizes for e in exchanges],
        [e.output_split_sizes for e in exchanges],
    )
    return [arrived[e.receive_order] for e, arrived in zip(exchanges, arrivals, strict=True)]


def restore(exchanges: Sequence[RankExchange], results: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The way back, of the same docstring."""
    buffers = []
    for e, result in zip(exchanges, results, strict=True):
        buffer = np.empty_like(result)
        buffer[e.receive_order] = result
        buffers.append(buffer)
    returned = all_to_all(buffers, [e.output_split_sizes for e in exchanges], [e.input_split_sizes for e in exchanges])
    return [arrived[e.restore_order] for e, arrived in zip(exchanges, returned, strict=True)]


def assert_same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
