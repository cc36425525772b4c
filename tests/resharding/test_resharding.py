"""Resharding between unlike layouts, with all GPUs simulated in NumPy."""

import re
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from balancer import Mesh, ModuleLayout, Placement, Topology
from balancer.layouts.resharding import Resharding, Shards, Source

SEED = st.integers(0, 2**32 - 1)
LAYOUT = st.builds(
    ModuleLayout, tp=st.sampled_from([1, 2, 3]), cp=st.sampled_from([1, 2, 3]), sp=st.sampled_from([1, 2]),
    dp=st.integers(1, 3), pp=st.sampled_from([1, 2]),
)  # fmt: skip


class Case(NamedTuple):
    """Items of a source that are parts of a target's, on GPUs in any order."""

    found: Resharding
    source: Shards
    target: Shards
    within: tuple
    num_gpus: int


def shards_of(rng, layout, lengths, num_gpus, num_slots):
    mesh = Mesh.of(layout, rng.permutation(num_gpus)[: layout.num_gpus].reshape(Mesh.of(layout).gpus.shape))
    replica = rng.integers(0, layout.dp, len(lengths)).astype(np.int32)
    slot = rng.integers(0, num_slots, len(lengths)).astype(np.int32)
    place = Placement.by_slots(replica, slot, layout.dp, num_slots)
    return Shards.of(mesh, place, lengths, (slot, num_slots))


def random_case(seed, from_layout, to_layout):
    rng = np.random.default_rng(seed)
    num_gpus = max(from_layout.num_gpus, to_layout.num_gpus) + int(rng.integers(0, 3))
    n, slots = int(rng.integers(0, 9)), int(rng.integers(1, 3))
    sample = np.sort(rng.integers(0, max(n, 1), n))
    sizes = rng.integers(0, 30, n)
    before = np.cumsum(sizes) - sizes
    lengths = np.bincount(sample, sizes, minlength=n).astype(np.int64)
    first = before - np.concatenate(([0], np.cumsum(lengths)))[:-1][sample]
    source = shards_of(rng, from_layout, sizes, num_gpus, slots)
    target = shards_of(rng, to_layout, lengths, num_gpus, slots)
    found = Resharding.of("out", [Source(source, (sample, first))], target, num_gpus)
    return Case(found, source, target, (sample, first), num_gpus)


def naive_buffers(shards, name_of):
    """What each sequence shard holds in order, by replica, slot and shard: an element's name, or -1 for padding."""
    layout, found = shards.mesh.layout, {}
    for replica in range(layout.dp):
        for slot in range(shards.num_slots):
            for c in range(layout.cp):
                for u in range(layout.sp):
                    held = found[replica, slot, c * layout.sp + u] = []
                    for i in shards.place.samples_on_rank(replica):
                        if shards.slot_of_item[i] != slot:
                            continue
                        total = int(shards.share[i]) * layout.cp * layout.sp
                        names = [name_of(i, e) if e < shards.lengths[i] else -1 for e in range(total)]
                        chunks = np.array_split(np.array(names, dtype=np.int64), 2 * layout.cp if layout.cp > 1 else 1)
                        mine = [chunks[c], chunks[2 * layout.cp - 1 - c]] if layout.cp > 1 else chunks
                        for chunk in mine:
                            held.extend(np.array_split(chunk, layout.sp)[u].tolist())
    return found


def windows_of(shards, buffers, num_gpus, device):
    """What each GPU has in its windows, slot after slot."""
    layout, found = shards.mesh.layout, [[] for _ in range(num_gpus)]
    for (replica, _, shard), held in sorted(buffers.items()):
        size = -(-len(held) // layout.tp)
        for t in range(layout.tp):
            found[shards.mesh.gpus[device, replica, shard, t]] += held[t * size : (t + 1) * size]
    return found


def moved(stream, payloads):
    """Bring rows from GPU to GPU as an all-to-all does, by the split sizes and orders of each."""
    parts = {}
    for gpu, rows in enumerate(payloads):
        part = stream.exchange(gpu)
        cuts = np.cumsum(stream.lengths[stream.source.samples_on_rank(gpu)])[:-1]
        sent = np.split(np.array(rows), cuts) if len(part.send_order) else []
        sent, bounds = [sent[k] for k in part.send_order], np.cumsum(part.input_split_sizes)
        for to, stop in enumerate(bounds):
            parts[gpu, to] = sent[stop - part.input_split_sizes[to] : stop]
    arrived = []
    for gpu in range(len(payloads)):
        rows = [row for other in range(len(payloads)) for row in parts[other, gpu]]
        order = stream.exchange(gpu).receive_order
        arrived.append([int(each) for k in order for each in rows[k]])
    return arrived


@settings(max_examples=examples(25), deadline=None)
@given(SEED, LAYOUT, LAYOUT)
def test_every_element_arrives_once_and_returns(seed, from_layout, to_layout):
    case = random_case(seed, from_layout, to_layout)
    found, num_gpus = case.found, case.num_gpus
    sample, first = case.within
    there = naive_buffers(case.source, lambda i, e: int(sample[i] * 1000 + first[i] + e))
    before = windows_of(case.source, there, num_gpus, -1)
    wanted = naive_buffers(case.target, lambda i, e: int(i) * 1000 + e)
    after = windows_of(case.target, wanted, num_gpus, 0)
    payloads = [[before[gpu][k] for k in found.sent(gpu)] for gpu in range(num_gpus)]
    arrived = moved(found.stream, payloads)
    for gpu, (rows, expected) in enumerate(zip(arrived, after, strict=True)):
        window = [-1] * len(expected)
        for place, row in zip(found.arriving(gpu), rows, strict=True):
            assert window[place] == -1
            window[place] = row
        assert window == expected
    assert int(found.stream.lengths.sum()) == int(case.target.lengths.sum())
    assert moved(found.stream.inverse(), arrived) == payloads


@settings(max_examples=examples(10), deadline=None)
@given(SEED, LAYOUT, LAYOUT)
def test_a_gpus_own_part_is_that_of_the_whole(seed, from_layout, to_layout):
    case = random_case(seed, from_layout, to_layout)
    devices = range(to_layout.pp)
    found = Resharding.of("out", case.found.sources, case.target, case.num_gpus, devices)
    for gpu in range(case.num_gpus):
        sending, receiving = Resharding.on(gpu, "out", case.found.sources, case.target, case.num_gpus, devices)
        whole, sent, got = (each.stream.exchange(gpu) for each in (found, sending, receiving))
        for name in ("input_split_sizes", "input_split_elements", "send_order"):
            assert getattr(whole, name).tolist() == getattr(sent, name).tolist()
        for name in ("output_split_sizes", "output_split_elements", "receive_order"):
            assert getattr(whole, name).tolist() == getattr(got, name).tolist()
        assert found.sent(gpu).tolist() == sending.sent(gpu).tolist()
        assert found.arriving(gpu).tolist() == receiving.arriving(gpu).tolist()


@settings(max_examples=examples(20), deadline=None)
@given(SEED, LAYOUT, LAYOUT)
def test_gradients_are_sums_over_tensor_replicas(seed, from_layout, to_layout):
    case = random_case(seed, from_layout, to_layout)
    found, target, source, gpus = case.found, case.target, case.source, case.target.mesh.gpus
    rng, total = np.random.default_rng(seed), {}
    per_gpu = [[] for _ in range(case.num_gpus)]
    for (replica, _, shard), held in sorted(naive_buffers(target, lambda i, e: int(i) * 1000 + e).items()):
        given_ = rng.integers(0, 99, (target.mesh.layout.tp, len(held)))  # what each tensor replica has of it
        total |= dict(zip(held, given_.sum(axis=0).tolist(), strict=True))
        size = -(-len(held) // target.mesh.layout.tp)
        for t, gpu in enumerate(gpus[0, replica, shard]):  # reduce-scatter
            per_gpu[gpu] += given_.sum(axis=0)[t * size : (t + 1) * size].tolist()
    sent = [[per_gpu[gpu][k] for k in found.arriving(gpu)] for gpu in range(case.num_gpus)]
    returned = moved(found.stream.inverse(), sent)
    sample, first = case.within
    there = naive_buffers(source, lambda i, e: int(sample[i] * 1000 + first[i] + e))
    names = windows_of(source, there, case.num_gpus, -1)
    for gpu, rows in enumerate(returned):
        assert rows == [total[names[gpu][k]] for k in found.sent(gpu)]


@settings(max_examples=examples(25), deadline=None)
@given(SEED, LAYOUT)
def test_what_each_gpu_is_told(seed, layout):
    """Places, boundaries and windows, of the GPUs of all pipeline devices."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 40, 6)
    shards = shards_of(rng, layout, lengths, layout.num_gpus + 2, 2)
    for (replica, slot, shard), held in naive_buffers(shards, lambda i, e: int(i) * 1000 + e).items():
        items = [i for i in shards.place.samples_on_rank(replica) if shards.slot_of_item[i] == slot]
        for t, gpu in enumerate(shards.mesh.gpus[:, replica, shard].T):
            for each in gpu:
                assert shards.positions(each, slot).tolist() == [e % 1000 if e >= 0 else -1 for e in held]
                assert shards.cu_seqlens(each, slot).tolist() == [0, *np.cumsum(shards.share[items]).tolist()]
                size = len(held) // layout.tp
                assert shards.window(each, slot) == slice(t * size, (t + 1) * size)
    multiple = layout.cp * layout.sp * layout.tp * (2 if layout.cp > 1 else 1)
    padded = shards.share * layout.sequence_shards
    assert ((padded % multiple == 0) & (padded >= lengths) & (padded < lengths + multiple)).all()


@settings(max_examples=examples(20), deadline=None)
@given(SEED, LAYOUT, LAYOUT, st.integers(1, 4))
def test_no_more_crosses_nodes_than_must(seed, from_layout, to_layout, nodes):
    """The bound counts, of each row, the nodes in which it is wanted and nobody has it."""
    case = random_case(seed, from_layout, to_layout)
    node = np.minimum(np.arange(case.num_gpus) * nodes // case.num_gpus, nodes - 1)
    topology = Topology([int(k) for k in np.bincount(node) if k])
    sample, first = case.within
    holders, wanted = {}, {}
    for shards, device, found, name in (
        (case.source, -1, holders, lambda i, e: int(sample[i] * 1000 + first[i] + e)),
        (case.target, 0, wanted, lambda i, e: int(i) * 1000 + e),
    ):
        for (replica, _, shard), held in naive_buffers(shards, name).items():
            at = {int(topology.node_of_rank[gpu]) for gpu in shards.mesh.gpus[device, replica, shard]}
            found.update((each, at) for each in held if each >= 0)
    least = sum(len(wanted[each] - holders[each]) for each in wanted)
    assert case.found.least_inter_node(topology) == least
    together = all(len(at) == 1 for at in (*holders.values(), *wanted.values()))
    crossing = case.found.stream.traffic(topology).inter_node
    assert not together or crossing == least


def test_a_mesh_is_checked():
    layout = ModuleLayout(tp=2, cp=2)
    for given_, what in (
        (np.zeros((1, 1, 2, 2)), "hold integers of shape [pp, dp, cp * sp, tp] = [1, 1, 2, 2], got float64"),
        (np.arange(4), "of shape [4]"),
        (np.array([[[[0, 1], [1, 2]]]]), "hold each GPU once, got GPU 1 2 times"),
        (np.array([[[[0, 1], [-1, 2]]]]), "be within 0..4194303, got -1 to 2"),
    ):
        with pytest.raises(ValueError, match=re.escape(what)):
            Mesh.of(layout, given_)
    mesh = Mesh.of(layout)
    with pytest.raises(ValueError, match="needs GPU 3, of 3 there are"):
        mesh.replica_of_gpu(3)
    with pytest.raises(ValueError, match="must be a GPU of the layout"):
        mesh.place_of(4)


def test_nodes_of_replicas():
    """Replicas share a node, have one of their own, or are where their data come in."""
    assert Mesh.of(ModuleLayout(tp=2, dp=8)).topology(Topology.uniform(16, 8)).node_sizes == (4, 4)
    assert Mesh.of(ModuleLayout(tp=8, cp=2, dp=2)).topology(Topology.uniform(32, 8)).node_sizes == (1, 1)
    assert Mesh.of(ModuleLayout(tp=4, pp=2, dp=4)).topology(Topology.uniform(32, 8)).node_sizes == (2, 2)
    assert Mesh.of(ModuleLayout(tp=3, dp=4)).topology(Topology([8, 4])).node_sizes == (3, 1)
