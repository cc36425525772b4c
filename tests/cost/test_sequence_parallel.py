"""What a sample takes on several ranks, against the formula in exact fractions; how it is written; what is refused."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from balancer.cost import CostModel, Sharing, check_heads, flops, integer_seconds, module, parse_cost
from balancer.cost.parts import Attention
from balancer.cost.sequence_parallel import exchange_bytes
from balancer.simulate.cluster import CLUSTERS

SPEEDS = {2: "119.54", 4: "104.07", 8: "96.5", 16: "10.33", 32: "5.94", 64: "4.87"}
PUBLISHED = {  # a1, a2, beta in ms; MB a token
    "flexsp-7b-a100": ("5.128e-6", "0.1839576", "629.3563", "2"),
    "flexsp-13b-a100": ("9.2852e-6", "0.3060", "1132.56", "3.125"),
    "flexsp-30b-a100": ("15.4262e-6", "0.8036", "2789.36", "6.09375"),
}


def published_ms(name, length, degree):
    square, linear, _, volume = map(Fraction, PUBLISHED[name])
    listed = next((d for d in SPEEDS if d >= degree), 64)
    exchange = volume / Fraction(SPEEDS[listed]) if degree > 1 else 0
    return (square * length**2 + (linear + exchange) * length) / degree


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_constants(name):
    lengths, degrees = np.array([1, 128, 8192, 193_000]), [1, 2, 4, 8, 16, 32, 64, 128, 3]
    cost = parse_cost(name)
    priced = cost.degree_times(lengths, degrees, 64)
    assert priced.unit == 1  # a picosecond
    for row, degree in zip(priced.times.tolist(), degrees, strict=True):
        for time, length in zip(row, lengths.tolist(), strict=True):
            exact = 10**9 * published_ms(name, length, degree)
            assert abs(time - exact) <= 1 + (length + length**2) / 2 / degree  # coefficients are whole picoseconds
    assert priced.overhead == 10**9 * Fraction(PUBLISHED[name][2])
    assert cost.sample_costs(lengths).tolist() == priced.times[0].tolist()
    assert parse_cost(str(cost)) == cost


@given(
    st.lists(st.integers(0, 2**20), max_size=5),
    st.integers(1, 1024),
    st.integers(0, 50),
    st.integers(0, 10**6),
    st.integers(0, 50),
)
def test_loss_against_fractions(lengths, degree, loss, a, b):
    if not a and not b:
        return
    model = CostModel(a, b, sharing=Sharing(loss))
    doublings = degree.bit_length() - 1
    kept = Fraction(100 - loss, 100) ** doublings
    further = kept * Fraction(100 - loss, 100)
    kept += (further - kept) * Fraction(degree - 2**doublings, 2**doublings)
    priced = model.degree_times(np.array(lengths, dtype=np.int64), [degree], 1)
    assert priced.times.dtype == np.int64
    for time, length in zip(priced.times[0].tolist(), lengths, strict=True):
        exact = Fraction(a * length + b * length**2) / (degree * kept)
        assert (
            exact * (1 - Fraction(degree, 2**30)) / priced.unit
            <= time
            <= (exact * (1 + Fraction(degree, 2**30)) + 1) / priced.unit + 1
        )


def test_a_ring_hides_behind_attention():
    cost = parse_cost("quadratic:a=10,b=1,d2=100,hidden=1")
    assert cost.degree_times(np.array([20, 200]), [2], 2).times.tolist() == [[1100, 21000]]
    beside = parse_cost("quadratic:a=10,b=1,d2=100")
    assert beside.degree_times(np.array([20, 200]), [2], 2).times.tolist() == [[1300, 31000]]


@pytest.mark.parametrize("num_ranks", [1, 2**20])
@pytest.mark.parametrize("text", ["flexsp-30b-a100", "linear", "quadratic:a=0,b=8000000,loss=20"])
def test_the_solver_takes_what_it_is_given(text, num_ranks):
    lengths = np.array([10**6, 10**5, 1000, 1, 0])
    priced = parse_cost(text).degree_times(lengths, [1, 2, 4], num_ranks)
    most = sum(map(int, priced.times.max(axis=0))) + len(lengths) * priced.overhead
    assert num_ranks * most < 2**58
    assert priced.unit == 1 or 4 * num_ranks * most > 2**56  # no coarser than needed
    exact = parse_cost(text).degree_times(lengths, [1, 2, 4], 1)
    if exact.unit == 1:
        assert (priced.times == -(-exact.times // priced.unit)).all()
        assert priced.overhead == -(-exact.overhead // priced.unit)
    degrees = [1, 2, 4]
    solvers.sequence_groups(priced.times, lengths, degrees, min(num_ranks, 8), None, overhead=priced.overhead)


def test_rounding_up_is_room_that_is_needed_too():
    priced = parse_cost("linear").degree_times(np.full(4, 2**27 - 1), [1], 2**30)
    assert priced.unit == 4  # halved, 4 times 2^26 on 2^30 ranks were 2^58
    assert 2**30 * int(priced.times.sum()) < 2**58


sharings = st.builds(
    Sharing,
    st.one_of(st.none(), st.integers(0, 50)),
    st.dictionaries(st.integers(2, 99), st.integers(0, 10**6)).map(lambda d: tuple(sorted(d.items()))),
    st.booleans(),
    st.integers(0, 10**9),
)


@given(sharings, st.integers(1, 99), st.integers(0, 99))
def test_text_round_trip(sharing, a, b):
    model = CostModel(a, b, sharing=sharing)
    assert parse_cost(str(model)) == model


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("linear:loss=51", "loss must be 0 to 50, percent of a rank's speed, got 51"),
        ("linear:d1=3", "names an unknown one"),
        ("linear:d2=3,d02=3", "names an unknown one"),
        ("linear:d=3", "lacks a coefficient or names an unknown one"),
        ("linear:x2=3", "lacks a coefficient or names an unknown one"),
        ("linear:exchange=3", "lacks a coefficient or names an unknown one"),
        ("padded:loss=3", "lacks a coefficient or names an unknown one"),
        ("flexsp-7b-a100:loss=3", "lacks a coefficient or names an unknown one; write flexsp-7b-a100"),
        ("flexsp-7b", "unknown cost 'flexsp-7b'; known costs are .*flexsp-7b-a100"),
        ("linear:overhead=99999999999999999999", "overhead must be >= 0 and fit int64"),
    ],
)
def test_bad_forms(text, words):
    with pytest.raises(ValueError, match=words):
        parse_cost(text)


def test_what_no_ranks_share():
    lengths = np.array([5, 2**31])
    for text in ("padded", "convolution:a=1,c=1"):
        with pytest.raises(ValueError, match="is of rows padded together: sequence_groups need one that adds up"):
            parse_cost(text).degree_times(lengths, [1, 2], 2)
        with pytest.raises(ValueError, match="takes no sharing"):
            CostModel(c=1, sharing=Sharing(3)) if "c" in text else CostModel(padded=True, sharing=Sharing(3))
    with pytest.raises(ValueError, match=r"its exchange the cost of sample 1 \(length 2147483648\) must fit int64"):
        parse_cost("linear:d2=4294967296").degree_times(lengths, [1, 2], 2)
    with pytest.raises(ValueError, match=r"degrees\[1\] must be >= 1, got 0"):
        parse_cost("linear").degree_times(lengths, [1, 0], 2)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "legal"),
    [(32, 8, [1, 2, 4, 8, 16, 32]), (28, 4, [1, 2, 4, 28]), (12, 12, [1, 2, 3, 4, 6, 12])],
)
def test_degrees_that_heads_allow(heads, kv_heads, legal):
    attention = Attention(hidden=64, heads=heads, kv_heads=kv_heads, head_dim=8)
    check_heads(legal, attention)
    for degree in set(range(65)) - set(legal):
        with pytest.raises(ValueError, match=rf"degrees\[1\] must divide the model's {heads} .*, got {degree}; take "):
            check_heads([1, degree], attention)


def test_heads_of_a_cost():
    assert parse_cost("flops:llama-3-8b").attention.heads == 32
    assert parse_cost("quadratic:a=1,b=1").attention is None


def test_exchange_on_a_cluster_by_hand():
    """Of 16 parts 7 come from the node and 8 from outside; round a ring all 15 at the network's pace."""
    llama, cost = module("llama-3-8b"), flops("llama-3-8b").integer_cost()
    attention = llama.attention
    assert exchange_bytes(attention, llama.layers, 2) == 2 * 2 * 32 * (2 * 32 + 2 * 8) * 128
    assert exchange_bytes(attention, llama.layers, 16) == 2 * 2 * 32 * (2 * 32 + 2 * 16) * 128  # keys are repeated
    assert exchange_bytes(attention, llama.layers, 2, checkpointing=True) == 3 * 2 * 32 * (2 * 32 + 2 * 8) * 128
    rate = 0.4 * 989.4e12 / cost.factor
    shared = CLUSTERS["h100"].shared_cost(cost, llama, [16, 1, 2, 2], efficiency=0.4, slot_s=0.5)
    volume = 2 * 2 * 32 * 96 * 128
    want = ((2, 2 * 2 * 32 * 80 * 128 / 2 / 450e9 * rate), (16, volume / 16 * (7 / 450e9 + 8 / 50e9) * rate))
    assert [d for d, _ in shared.sharing.exchange] == [2, 16]
    np.testing.assert_allclose([w for _, w in shared.sharing.exchange], [w for _, w in want], atol=0.5)
    assert shared.sharing.overhead == round(0.5 * rate)
    assert (shared.a, shared.b, shared.sharing.loss, shared.sharing.hidden) == (cost.model.a, cost.model.b, 0, False)
    ring = CLUSTERS["h100"].shared_cost(cost, llama, [3, 16], exchange="ring", efficiency=0.4).sharing
    hop = 3 * 2 * 32 * 2 * 8 * 128
    np.testing.assert_allclose(
        [w for _, w in ring.exchange], [2 * hop / 450e9 * rate, 15 * hop / 50e9 * rate], atol=0.5
    )
    assert ring.hidden


def test_a_measured_cost_on_a_cluster():
    cost = integer_seconds({"a": 1.14e-4, "b": 1.5e-9})  # picoseconds: how fast the cluster computes does not matter
    one, two = (CLUSTERS["a100"].shared_cost(cost, module("qwen2-7b"), [2], efficiency=e) for e in (0.3, 0.6))
    assert one == two
    assert one.sharing.exchange == ((2, round(2 * 2 * 28 * (2 * 28 + 2 * 4) * 128 / 2 / 300e9 * 1e12)),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"degrees": [1, 8]}, r"degrees\[1\] must divide the model's 28 attention heads"),
        ({"exchange": "mesh"}, "exchange must be one of ulysses, ring, got 'mesh'"),
        ({"efficiency": 0}, "efficiency must be > 0 and <= 1"),
        ({"slot_s": -1}, "slot_s must be finite and >= 0"),
    ],
)
def test_bad_arguments_of_a_cluster(changes, words):
    given = {"degrees": [1, 2], **changes}
    with pytest.raises(ValueError, match=words):
        CLUSTERS["h100"].shared_cost(flops("qwen2-7b").integer_cost(), module("qwen2-7b"), **given)


def test_an_exchange_is_hidden_or_not():
    with pytest.raises(ValueError, match="hidden must be 0 or 1, got 2"):
        Sharing(hidden=2)
