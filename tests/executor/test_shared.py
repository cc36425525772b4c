"""Samples that ranks share, on real ranks: pieces arrive where the plan says, and come back whole."""

import pytest

pytest.importorskip("torch")

import shared_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from payloads import DTYPES, KINDS, TRAILING
from rank_processes import Ranks
from ranks_of import ranks_of

FEW = settings(max_examples=examples(10))
seeds = st.integers(0, 2**16)
counts = st.lists(st.integers(0, 4), min_size=4, max_size=4)
ZIGZAG = {"degrees": (1, 2, 4), "order": "zigzag", "pad_to": 2}
cuts = st.sampled_from([  # few, as each makes a dispatcher and its groups
    ZIGZAG,
    {"degrees": (1, 2, 4)},
    {"degrees": (1, 2, 4), "pad_to": 8, "count": 3, "encoders": "slot"},
    {"degrees": (1, 3), "count": 3},
    {"degrees": (2, 4), "order": "zigzag", "pad_to": 8, "encoders": "slot"},
    {"degrees": (4,), "order": "zigzag", "count": 1},
    {"degrees": (1,)},
])  # fmt: skip
fields = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, len(DTYPES) - 1), st.integers(0, len(TRAILING) - 1)),
    max_size=3,
)


ranks = ranks_of(4)


@FEW
@given(seeds, counts, fields, cuts, st.sampled_from(["replicate", "broadcast"]))
def test_restore_is_the_inverse_of_dispatch(ranks, seed, counts, fields, cut, way):
    assert len({digest for digest, _ in ranks.run(cases.round_trip, seed, counts, fields, cut, {"planning": way})}) == 1


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_field_goes_whole_to_every_rank_of_a_group(ranks, kind):
    results = ranks.run(cases.round_trip, 3, [4, 0, 3, 1], {"a": (kind, 0, 0), "b": (kind, 3, 1)}, ZIGZAG, {})
    assert max(results[0][1]) > 1


def test_off_the_host(ranks):
    every = {name[:2]: (name, number % len(DTYPES), 0) for number, name in enumerate(sorted(KINDS))}
    for cut in (ZIGZAG, {"degrees": (1, 3), "count": 3}):
        ranks.run(cases.off_the_host, "round_trip", 3, [4, 0, 3, 1], every, cut, {})
        ranks.run(cases.off_the_host, "phases_agree_with_no_exchange", 1, [3, 2, 0, 4], cut, {})


def test_over_nodes(ranks):
    arguments = {"ranks_per_node": 2}
    for seed in range(3):
        ranks.run(cases.round_trip, seed, [3, 2, 0, 4], {"a": ("list", 0, 1)}, ZIGZAG, arguments)
        ranks.run(cases.phases_agree_with_no_exchange, seed, [3, 2, 0, 4], ZIGZAG, arguments)


SHARDS = st.sampled_from([
    {"degree": 2, "pack_tokens": 400, "block": 4},
    {"degree": 4, "pack_tokens": 120, "block": 16, "sync": "step"},
    {"degree": 2, "pack_tokens": 150, "masks": {"full": 1, "window8": 3}, "count": 4},
    {"degree": 1, "pack_tokens": 400},
])  # fmt: skip


@FEW
@given(seeds, counts, SHARDS, st.sampled_from(["replicate", "broadcast"]))
def test_context_shards(ranks, seed, counts, cut, way):
    assert len(set(ranks.run(cases.context_shards, seed, counts, cut, {"planning": way}))) == 1


def test_context_shards_of_whole_nodes(ranks):
    arguments = {"ranks_per_node": 2}
    for seed in range(3):
        cut = {"degree": 4, "pack_tokens": 400, "block": 4}
        assert len(set(ranks.run(cases.context_shards, seed, [3, 2, 0, 4], cut, arguments))) == 1


@FEW
@given(seeds, counts, cuts)
def test_results_come_home(ranks, seed, counts, cut):
    ranks.run(cases.results_come_home, seed, counts, cut)


@FEW
@given(seeds, counts.filter(any), cuts, st.sampled_from(["replicate", "broadcast"]))
def test_phases_give_the_inputs_and_gradients_of_a_run_without_exchange(ranks, seed, counts, cut, way):
    results = ranks.run(cases.phases_agree_with_no_exchange, seed, counts, cut, {"planning": way})
    assert len({digest for digest, _ in results}) == 1


@pytest.mark.parametrize("cut", [None, {"degrees": (1, 2, 4), "encoders": "step", "pad_to": 2}])
@pytest.mark.parametrize(("size", "way"), [(2, "broadcast"), (4, "replicate")])
def test_so_do_encoders_whose_items_ranks_share(ranks, cut, size, way):
    for seed in range(3):
        results = ranks.run(cases.phases_agree_with_no_exchange, seed, [3, 2, 0, 4], cut, {"planning": way}, size)
        assert len({digest for digest, _ in results}) == 1
        assert max(degree for _, degrees in results for degree in degrees) > 1


def test_so_do_groups_of_all_eight_ranks():
    with Ranks(8) as started:
        counts = [0, 1, 0, 1, 0, 2, 0, 0]
        results = started.run(cases.phases_agree_with_no_exchange, 1, counts, None, {"planning": "replicate"}, 8)
    assert max(results[0][1]) == 8


def test_replica_peers_get_the_pieces_of_their_leader(ranks):
    assert max(ranks.run(cases.replicas_get_their_leaders_pieces, 1, {"degrees": (2,), "pad_to": 4})[0]) == 2


def test_steps_made_ahead(ranks):
    assert max(ranks.run(cases.prefetches, 5, ZIGZAG)[0]) > 1


@pytest.mark.parametrize(
    ("what", "name", "text"),
    [
        ("no_groups", "ArgumentTypeError", "cut must be one of balancer's cuts"),
        ("counts", "UsageError", "sequence_groups cannot be combined with equal_counts"),
        ("settings", "ExecutorError", "setting 'cut.pad_to' (2, not 1)"),
        ("degrees", "ExecutorError", "setting 'cut.degrees' ([1, 4], not [1, 2])"),
        ("shards", "ExecutorError", "setting 'cut.degree' (4, not 2)"),
        ("packs", "ExecutorError", "setting 'cut.pack_tokens' (401, not 400)"),
        (
            "some",
            "ExecutorError",
            "rank 2 differs from the others in setting 'cut' ('sequence_groups', not 'whole_shares')",
        ),
        ("own", "ValueError", "it has 4 of an item of sample 0 (entry 0 of rank 0), 'llm:own' has 3"),
    ],
)
def test_what_cannot_be_kept_is_refused(ranks, what, name, text):
    for found, _, traceback in ranks.errors(cases.refuses, what):
        assert found == name, traceback
        assert text in traceback
