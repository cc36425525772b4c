"""Samples that ranks share, on real ranks: pieces arrive where the plan says, and come back whole.

Every rank knows all payload, and cuts it itself.
"""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from dispatch_cases import dispatcher
from each_rank import each_rank, raises_on, same_everywhere
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from payloads import DTYPES, KINDS, TRAILING, batch_of, plain
from ranks_of import ranks_of

from balancer import ContextShards, Phase, SequenceGroups
from balancer.executor import Dispatcher, ExecutorError, PrefetchDispatcher, RaggedTensor, anchored, exchange
from solvers.errors import ArgumentTypeError, UsageError

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
SHARDS = st.sampled_from([
    {"degree": 2, "pack_tokens": 400, "block": 4},
    {"degree": 4, "pack_tokens": 120, "block": 16, "sync": "step"},
    {"degree": 2, "pack_tokens": 150, "masks": {"full": 1, "window8": 3}, "count": 4},
    {"degree": 1, "pack_tokens": 400},
])  # fmt: skip
ways = st.sampled_from(["replicate", "broadcast"])

# Fields with an element a token: trailing shape and dtype.
TOKENS = {"ids": ((), torch.int64), "features": ((3,), torch.bfloat16), "none": ((2, 0), torch.float32)}

ranks = ranks_of(4, 8)  # of eight, four or all
four = each_rank(sizes=(4,))


def lengths_of(seed, counts):
    """Lengths of all samples, rank after rank; a few are long, some are 0."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 12, sum(counts))
    lengths[rng.random(sum(counts)) < 0.2] *= 9
    return lengths


def rows_of(seed, lengths, name):
    rng, (trailing, dtype) = np.random.default_rng([seed, len(name)]), TOKENS[name]
    return [torch.from_numpy(rng.integers(1, 100, (length, *trailing))).to(dtype) for length in lengths]


def mine(everything, counts, rank):
    first = sum(counts[:rank])
    return everything[first : first + counts[rank]]


def share_of(row, plan, sample, rank):
    """A rank's share of a row with an element a token, cut here by its definition."""
    table, cut = plan.group_table, plan.cut
    if table is None:
        return row
    group = table.group_of_sample[sample]
    degree, place = int(table.degree[group]), rank - int(table.first_rank[group])
    chunks = 2 * degree if cut.order == "zigzag" and degree > 1 else degree
    size = -(-len(row) // (chunks * cut.pad_to)) * cut.pad_to
    padded = torch.cat([row, row.new_zeros(chunks * size - len(row), *row.shape[1:])])
    held = [place] if chunks == degree else [place, chunks - 1 - place]
    return torch.cat([padded[chunk * size : (chunk + 1) * size] for chunk in held])


def held_by(plan, rank):
    """The samples whose group a rank is in, slot by slot."""
    table = plan.group_table
    found = []
    for slot in range(plan.num_slots):
        inside = (table.slot == slot) & (table.first_rank <= rank) & (rank < table.first_rank + table.degree)
        found.append(np.flatnonzero(inside[table.group_of_sample]).tolist())
    return found


def round_trip(rank, seed, counts, fields, cut, **arguments):
    """Dispatch and restore fields that are cut, and fields of any kind that are not."""
    lengths = lengths_of(seed, counts)
    tokens = {name: rows_of(seed, lengths, name) for name in TOKENS}
    others = [batch_of(seed, other, n, fields) for other, n in enumerate(counts)]
    batch = {name: mine(rows, counts, rank) for name, rows in tokens.items()} | others[rank]
    batch["features"] = RaggedTensor(torch.cat([tokens["features"][0][:0], *batch["features"]]),
                                     [len(row) for row in batch["features"]]) if counts[rank] else []  # fmt: skip
    made = dispatcher(length="ids", cut=SequenceGroups(**cut), **arguments)
    out = made.dispatch(batch if counts[rank] else {})
    slots = held_by(out.plan, rank)
    samples = [sample for slot in slots for sample in slot]
    assert out.samples.tolist() == samples
    assert out.slot_bounds().tolist() == np.cumsum([0, *map(len, slots)]).tolist()
    for name, rows in tokens.items() if sum(counts) else ():
        wanted = [share_of(rows[sample], out.plan, sample, rank) for sample in samples]
        assert plain(out[name]) == plain(wanted), name
        assert out.lengths().tolist() == [len(row) for row in wanted]
    wanted = {name: [entry for one in others for entry in plain(one[name])] for name in fields}
    for name in fields if sum(counts) else ():
        assert plain(out[name]) == [wanted[name][sample] for sample in samples], name
    back = out.restore() if sum(counts) else {}
    for name in back:
        assert plain(back[name]) == plain(batch[name]), name
    _check_slots(rank, out, slots, lengths)
    same_everywhere(out.plan.digest())
    return out.plan.group_table.degree.max(initial=0)


@FEW
@given(seed=seeds, counts=counts, fields=fields, cut=cuts, way=ways)
@four
def test_restore_is_the_inverse_of_dispatch(rank, seed, counts, fields, cut, way):
    round_trip(rank, seed, counts, fields, cut, planning=way)


@four
def test_every_kind_of_field_goes_whole_to_every_rank_of_a_group(rank):
    for kind in KINDS:
        assert round_trip(rank, 3, [4, 0, 3, 1], {"a": (kind, 0, 0), "b": (kind, 3, 1)}, ZIGZAG) > 1


@four
def test_off_the_host(rank):
    """By the way that copies take where there are no runs of bytes."""
    every = {name[:2]: (name, number % len(DTYPES), 0) for number, name in enumerate(sorted(KINDS))}
    with mock.patch.object(exchange, "_on_host", return_value=False):
        for cut in (ZIGZAG, {"degrees": (1, 3), "count": 3}):
            round_trip(rank, 3, [4, 0, 3, 1], every, cut)
            phases_agree_with_no_exchange(rank, 1, [3, 2, 0, 4], cut)


@four
def test_over_nodes(rank):
    round_trip(rank, 1, [3, 2, 0, 4], {"a": ("list", 0, 1)}, ZIGZAG, ranks_per_node=2)
    phases_agree_with_no_exchange(rank, 1, [3, 2, 0, 4], ZIGZAG, ranks_per_node=2)


def _check_slots(rank, out, slots, lengths):
    for slot, samples in enumerate(slots):
        sizes = [len(share_of(torch.ones(lengths[sample]), out.plan, sample, rank)) for sample in samples]
        assert out.cu_seqlens(slot).tolist() == np.cumsum([0, *sizes]).tolist()
        pieces = out.pieces(slot)
        assert (pieces.stop - pieces.start).sum() == sum(sizes)
        ranks = next((group.ranks for group in out.plan.groups(slot) if rank in group.ranks), range(0))
        group = out.process_group(slot)
        assert (group is None) == (len(ranks) < 2)
        if group is not None:
            assert dist.get_process_group_ranks(group) == list(ranks)
            total = torch.tensor(rank)
            dist.all_reduce(total, group=group)
            assert total == sum(ranks)
    for none in (-1, len(slots)):
        with pytest.raises(ValueError, match="slot must be within"):
            out.cu_seqlens(none)


@FEW
@given(seed=seeds, counts=counts, cut=cuts)
@four
def test_results_come_home(rank, seed, counts, cut):
    lengths = lengths_of(seed, counts)
    made = dispatcher(length="ids", cut=SequenceGroups(**cut))
    out = made.dispatch({"ids": mine(rows_of(seed, lengths, "ids"), counts, rank)} if counts[rank] else {})
    twice = [row * 2 for row in out["ids"]] if sum(counts) else []
    first = [out.plan.rank_of_sample[sample] == rank for sample in out.samples]
    results = {
        "padded": twice,
        "text": [f"of {sample}" if is_first else "no" for sample, is_first in zip(out.samples, first, strict=True)],
        "loss": [float(sample) if is_first else -1.0 for sample, is_first in zip(out.samples, first, strict=True)],
        "ragged": [torch.full((int(s) % 4 + 100,), int(s)) for s in out.samples],
    }
    home = out.restore(results)
    wanted = [row * 2 for row in mine(rows_of(seed, lengths, "ids"), counts, rank)]
    numbers = mine(list(range(sum(counts))), counts, rank)
    assert plain(home["padded"]) == plain(wanted)
    assert home["text"] == [f"of {sample}" for sample in numbers]
    assert home["loss"] == [float(sample) for sample in numbers]
    assert [(len(row), set(row.tolist())) for row in home["ragged"]] == [(s % 4 + 100, {s}) for s in numbers]


def context_shards(rank, seed, counts, cut, **arguments):
    """Each rank gets the positions of documents that the plan gives it, document by document, and sends them home."""
    lengths = lengths_of(seed, counts)
    tokens = {name: rows_of(seed, lengths, name) for name in TOKENS}
    made = dispatcher(length="ids", cut=ContextShards(**cut), **arguments)
    out = made.dispatch({name: mine(rows, counts, rank) for name, rows in tokens.items()} if counts[rank] else {})
    found, samples = {name: [] for name in tokens}, []
    for slot in range(out.plan.num_slots):
        held, size = out.pieces(slot), 0
        for sample in dict.fromkeys(held.sample.tolist()):
            samples.append(sample)
            at = held.sample == sample
            cuts = list(zip(held.start[at].tolist(), held.stop[at].tolist(), strict=True))
            for name, rows in tokens.items():
                found[name].append(torch.cat([rows[sample][start:stop] for start, stop in cuts]))
            size += sum(stop - start for start, stop in cuts)
        assert out.cu_seqlens(slot)[-1] == size
        group = out.process_group(slot)
        if group is not None:  # the ranks of a replica
            first = rank // cut["degree"] * cut["degree"]
            assert dist.get_process_group_ranks(group) == list(range(first, first + cut["degree"]))
    assert out.samples.tolist() == samples
    for name, rows in found.items() if sum(counts) else ():
        assert plain(out[name]) == plain(rows), name
    back = out.restore() if sum(counts) else {}
    for name in back:
        assert plain(back[name]) == plain(mine(tokens[name], counts, rank)), name
    same_everywhere(out.plan.digest())


@FEW
@given(seed=seeds, counts=counts, cut=SHARDS, way=ways)
@four
def test_context_shards(rank, seed, counts, cut, way):
    context_shards(rank, seed, counts, cut, planning=way)


@four
def test_context_shards_of_whole_nodes(rank):
    context_shards(rank, 1, [3, 2, 0, 4], {"degree": 4, "pack_tokens": 400, "block": 4}, ranks_per_node=2)


PHASES = [Phase("vision", "patches", outputs="image"), Phase("llm", "tokens", own="text")]
WIDTH = 3


def _real(out, phase, rows):
    """A phase's rows on a rank, without padding; and its slots are as the plan has them."""
    plan, bounds, found = out.plan[phase], out.slot_bounds(phase), []
    for slot in range(plan.num_slots):
        pieces, here = out.pieces(slot, phase), rows[bounds[slot] : bounds[slot + 1]]
        assert out.cu_seqlens(slot, phase).tolist() == np.cumsum([0, *map(len, here)]).tolist()
        ranks = next((group.ranks for group in plan.groups(slot) if out.rank in group.ranks), range(1))
        assert (out.process_group(slot, phase) is None) == (len(ranks) < 2)
        left = np.minimum(pieces.stop, plan.lengths[pieces.sample]) - pieces.start
        found += [row[: max(0, count)] for row, count in zip(here, left.tolist(), strict=True)]
    return found


def phases_agree_with_no_exchange(rank, seed, counts, cut, size=None, **arguments):
    """What the last phase gets, shared, and the gradients of what encoders put out, are those of one process.

    Given a `size`, ranks share what the encoder takes too.
    """
    rng = np.random.default_rng(seed)
    n, scale = sum(counts), np.where(rng.random(sum(counts)) < 0.25, 8, 1)
    image, text = rng.integers(0, 6, n) * scale, rng.integers(0, 6, n) * scale
    patches = [torch.from_numpy(rng.standard_normal((k, WIDTH))) for k in image]
    words = [torch.from_numpy(rng.integers(1, 50, k)) for k in text]
    labels = [torch.from_numpy(rng.integers(1, 50, k)) for k in image + text]
    table = torch.from_numpy(rng.standard_normal((50, WIDTH)))
    columns = {"patches": image, "image": image, "tokens": image + text, "text": text}
    here = {name: mine(column, counts, rank) for name, column in columns.items()}
    batch = {
        "pixels": mine(patches, counts, rank),
        "words": mine(words, counts, rank),
        "labels": mine(labels, counts, rank),
    }
    batch["notes"] = [torch.full((s % 5,), s) for s in mine(list(range(n)), counts, rank)]
    fields = {"pixels": "vision", "words": "llm:own"}
    if size is not None:  # an image's grid is as long as no image
        fields["grid"] = "vision"
        grids = [torch.full((200 if k else 0,), s) for s, k in enumerate(image)]
        batch["grid"] = mine(grids, counts, rank)
    phases = [replace(PHASES[0], sequence_parallel=size), PHASES[1]]
    shared = None if cut is None else SequenceGroups(**cut)
    made = dispatcher(phases=phases, fields=fields, cut=shared, **arguments)
    out = made.dispatch(batch, here) if counts[rank] else made.dispatch({})
    factor = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    weight = table.clone().requires_grad_()
    rows = (out["pixels"] if size is None else _real(out, "vision", out["pixels"])) if n else []
    pixels = torch.cat([torch.zeros(0, WIDTH, dtype=torch.float64), *rows])
    if size is not None and n:
        home = out.restore({"twice": [row * 2 for row in out["pixels"]]}, phase="vision")["twice"]
        assert plain(home) == plain([row * 2 for row in batch["pixels"] if len(row)])
        held, of = out.plan["vision"], out.plan.phases["vision"].items.sample_of_item
        assert plain(out["grid"]) == plain([grids[s] for s in of[held.samples_on_rank(rank)]])
        assert plain(out.restore()["grid"]) == plain(batch["grid"])
    ids = torch.cat([torch.zeros(0, dtype=torch.int64), *(out["words"] if n else [])])
    x = out.inputs("llm", {"vision": pixels * factor}, own=weight[ids])
    plan, samples = out.plan["llm"], out.samples
    whole = [torch.cat([patches[s] * 0.5, table[words[s]]]) for s in range(n)]
    wanted = [share_of(whole[s], plan, s, rank) for s in samples]
    assert [len(row) for row in wanted] == x.lengths.tolist() == out.lengths().tolist()
    assert plain(list(x.rows())) == plain(wanted)
    if n:
        assert plain(out["notes"]) == plain([torch.full((s % 5,), s) for s in samples])
        assert plain(out["labels"]) == plain([share_of(labels[s], plan, s, rank) for s in samples])
    # a loss of each token and of its place in the sample; padding counts for nothing
    scales = [share_of(torch.arange(1.0, len(whole[s]) + 1, dtype=torch.float64), plan, s, rank) for s in samples]
    flat = torch.cat([torch.zeros(0, dtype=torch.float64), *scales])
    anchored(((x.values**2).sum(1) * flat).sum(), x.values).backward()
    grads = torch.cat([factor.grad.reshape(1), weight.grad.reshape(-1)])
    dist.all_reduce(grads)
    factor, weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True), table.clone().requires_grad_()
    whole = [torch.cat([patches[s] * factor, weight[words[s]]]) for s in range(n)]
    places = [torch.arange(1.0, len(row) + 1, dtype=torch.float64) for row in whole]
    total = sum(((row**2).sum(1) * place).sum() for row, place in zip(whole, places, strict=True)) + 0 * weight.sum()
    (total + 0 * factor).backward()
    torch.testing.assert_close(grads, torch.cat([factor.grad.reshape(1), weight.grad.reshape(-1)]))
    home = out.restore() if n else {}
    for name in home:
        assert plain(home[name]) == plain(batch[name]), name
    same_everywhere(out.plan.digest())
    return out.plan["vision" if size else "llm"].group_table.degree.max(initial=0)


@FEW
@given(seed=seeds, counts=counts.filter(any), cut=cuts, way=ways)
@four
def test_phases_give_the_inputs_and_gradients_of_a_run_without_exchange(rank, seed, counts, cut, way):
    phases_agree_with_no_exchange(rank, seed, counts, cut, planning=way)


@pytest.mark.parametrize("cut", [None, {"degrees": (1, 2, 4), "encoders": "step", "pad_to": 2}])
@pytest.mark.parametrize(("size", "way"), [(2, "broadcast"), (4, "replicate")])
@four
def test_so_do_encoders_whose_items_ranks_share(rank, cut, size, way):
    found = [phases_agree_with_no_exchange(rank, seed, [3, 2, 0, 4], cut, size, planning=way) for seed in range(3)]
    assert max(found) > 1


@each_rank(sizes=(8,))
def test_so_do_groups_of_all_eight_ranks(rank):
    assert phases_agree_with_no_exchange(rank, 1, [0, 1, 0, 1, 0, 2, 0, 0], None, 8) == 8


@four
def test_replica_peers_get_the_pieces_of_their_leader(rank):
    """Two after each other are replica peers; both get the pieces of their place, and groups of their own."""
    seed, cut = 1, {"degrees": (2,), "pad_to": 4}
    size = dist.get_world_size()
    dp = [dist.new_group(list(range(place, size, 2))) for place in range(2)]
    replicas = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    counts = [3] * (size // 2)
    lengths = lengths_of(seed, counts)
    rows = rows_of(seed, lengths, "ids")
    made = Dispatcher(dp[rank % 2], replica_group=replicas[rank // 2], length="ids", cut=SequenceGroups(**cut))
    batch = {"ids": mine(rows, counts, rank // 2), "number": mine(list(range(sum(counts))), counts, rank // 2)}
    out = made.dispatch(batch if rank % 2 == 0 else None)
    assert plain(out["ids"]) == plain([share_of(rows[s], out.plan, s, rank // 2) for s in out.samples])
    assert out["number"] == out.samples.tolist()
    back = out.restore()
    assert plain(back["ids"]) == plain(batch["ids"])
    assert back["number"] == batch["number"]
    for slot in range(out.plan.num_slots):
        group = out.process_group(slot)
        if group is not None:
            ranks = next(one.ranks for one in out.plan.groups(slot) if rank // 2 in one.ranks)
            assert dist.get_process_group_ranks(group) == [2 * place + rank % 2 for place in ranks]
    assert out.plan.group_table.degree.max() == 2


@four
def test_steps_made_ahead(rank):
    """The steps of a loader are those of dispatch, one after the other."""
    counts, seen = [2] * dist.get_world_size(), 0
    made = Dispatcher(length="ids", cut=SequenceGroups(**ZIGZAG))
    rows = [rows_of(seed, lengths_of(seed, counts), "ids") for seed in range(5, 9)]
    loader = [{"ids": mine(of_step, counts, rank)} for of_step in rows]
    for step, batch in enumerate(PrefetchDispatcher(loader, made)):
        out = made.current
        assert plain(batch["ids"]) == plain([share_of(rows[step][s], out.plan, s, rank) for s in out.samples])
        assert plain(out.restore()["ids"]) == plain(loader[step]["ids"])
        seen = max(seen, out.plan.group_table.degree.max())
    assert seen > 1


@four
def test_what_cannot_be_kept_is_refused(rank):
    cut, ids, odd = SequenceGroups((1, 2)), [torch.ones(4 + rank)], rank == 3
    for arguments, error, text in [
        ({"cut": {"degrees": (1, 2)}}, ArgumentTypeError, "cut must be one of balancer's cuts"),
        ({"cut": cut, "equal_counts": True}, UsageError, "sequence_groups cannot be combined with equal_counts"),
        ({"cut": SequenceGroups((1, 2), pad_to=1 + odd)}, None, "setting 'cut.pad_to' (2, not 1)"),
        ({"cut": SequenceGroups((1, 4 if odd else 2))}, None, "setting 'cut.degrees' ([1, 4], not [1, 2])"),
        ({"cut": ContextShards(2 + 2 * odd, 400)}, None, "setting 'cut.degree' (4, not 2)"),
        ({"cut": ContextShards(2, 400 + odd)}, None, "setting 'cut.pack_tokens' (401, not 400)"),
        ({"cut": cut} if odd else {}, None, "rank 3 differs from the others in setting 'cut' ('sequence_groups', not "),
    ]:
        with raises_on([3], ExecutorError, text) if error is None else pytest.raises(error) as caught:
            Dispatcher(length="ids", **arguments)
        assert error is None or text in str(caught.value)
    made = Dispatcher(phases=PHASES, fields={"words": "llm:own"}, cut=cut)
    with pytest.raises(ValueError, match=r"has 4 of an item of sample 0 \(entry 0 of rank 0\), 'llm:own' has 3"):
        made.dispatch({"words": ids}, {"patches": [1], "image": [1], "tokens": [4], "text": [3]})
