"""Context shards on real ranks: attention, loss and gradients are those of one process; what travels is as planned."""

import contextlib
import random
import signal
import time
from datetime import timedelta
from itertools import chain
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from each_rank import each_rank, everywhere, raises_on
from rank_processes import Ranks
from ranks_of import ranks_of
from torch.utils.checkpoint import checkpoint

import balancer
import solvers
from balancer.executor import ContextExchange, ExecutorError, ShardRows, shift_labels
from balancer.executor.ranks import Ranks as Talking
from solvers.errors import ArgumentError, ArgumentTypeError

HEADS, KV_HEADS, SIZE = 4, 2, 3
WIDTH = HEADS * SIZE
TIMEOUT = timedelta(seconds=20)
MASKS = [{"full": 1}, {"full": 1, "window5": 2, "chunk8": 1}]

ranks = ranks_of(2, 4)

made = None


def lengths_of(seed, ranks):
    """A few long documents and many short ones; what fills the pack up is padding."""
    rng = np.random.default_rng(seed)
    return np.maximum(rng.lognormal(2.5, 1, rng.integers(1, 9)).astype(np.int64), 4)


def dense(lengths, kind, padded):
    """Which key of a pack each query sees, by the masks' definitions; padding sees itself."""
    document = np.repeat(np.arange(len(lengths)), lengths)
    at = np.concatenate([np.arange(n) for n in lengths])
    q, k = at[:, None], at[None, :]
    name, size = kind.rstrip("0123456789"), int("0" + kind[len(kind.rstrip("0123456789")) :])
    sees = {
        "full": k <= q,
        "window": (k <= q) & (k > q - size),
        "chunk": (k <= q) & (k // max(1, size) == q // max(1, size)),
    }[name]
    sees = sees & (document[:, None] == document[None, :])
    if padded:
        last = document == len(lengths) - 1
        sees[last] = np.eye(len(document), dtype=bool)[last]
    return torch.from_numpy(sees)


def attention(query, keys, values, mask):
    """Attention of groups of heads: queries [c, heads, size], keys and values [k, fewer heads, size]."""
    keys, values = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (keys, values))
    scores = torch.einsum("qhs,khs->hqk", query, keys).masked_fill(~mask, -torch.inf)
    return torch.einsum("hqk,khs->qhs", scores.softmax(dim=-1), values).reshape(len(query), WIDTH)


class Layers(torch.nn.Module):
    """Layers of attention, of one kind each."""

    def __init__(self, kinds, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.kinds = kinds
        sizes = HEADS * SIZE, 2 * KV_HEADS * SIZE
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(WIDTH, sum(sizes), dtype=dtype) for _ in kinds)

    def forward(self, x, attend, checkpoints=False):
        for kind, qkv in zip(self.kinds, self.qkv, strict=True):

            def layer(x, kind=kind, qkv=qkv):
                query, keys, values = qkv(x).split([WIDTH, KV_HEADS * SIZE, KV_HEADS * SIZE], dim=-1)
                shape = len(x), KV_HEADS, SIZE
                return x + attend(kind, query.reshape(len(x), HEADS, SIZE), keys.reshape(shape), values.reshape(shape))

            x = checkpoint(layer, x, use_reentrant=False) if checkpoints else layer(x)
        return x


def _shards(seed, masks, **settings):
    ranks = dist.get_world_size()
    lengths = lengths_of(seed, ranks)
    found = solvers.context_shards(lengths, ranks, masks=masks, pad=True, block=2, **settings)
    padding = -int(lengths.sum()) % ranks
    whole = np.append(lengths, padding) if padding else lengths
    return found, whole, padding > 0


def agrees_with_one_process(rank, seed, masks, checkpoints=False):
    """Outputs, the loss, gradients of weights and of inputs are those of one process that has the whole pack."""
    found, lengths, padded = _shards(seed, masks)
    exchange = ContextExchange(found, masks=masks)
    torch.manual_seed(seed)
    x = torch.randn(int(lengths.sum()), WIDTH, dtype=torch.float64)
    weight = torch.rand(len(x), 1, dtype=torch.float64)
    model, kinds = Layers(list(masks) * 2), list(masks)

    whole, inputs = Layers(list(masks) * 2), x.clone().requires_grad_()
    of = {kind: dense(lengths, kind, padded) for kind in kinds}
    expected = whole(inputs, lambda kind, q, k, v: attention(q, k, v, of[kind]))
    (expected.square() * weight).sum().backward()

    received = 0

    def attend(kind, query, keys, values):
        nonlocal received
        mask = exchange.dense_mask(kind)
        received += exchange.keys(kind).received
        return attention(query, *exchange.gather(keys, values, kind=kind), mask)

    mine = x[exchange.index].clone().requires_grad_()
    out = model(mine, attend, checkpoints)
    torch.testing.assert_close(out, expected[exchange.index], rtol=1e-9, atol=1e-9)
    loss = (out.square() * weight[exchange.index]).sum()
    loss.backward()
    torch.testing.assert_close(mine.grad, inputs.grad[exchange.index], rtol=1e-9, atol=1e-9)
    for got, wanted in zip(model.parameters(), whole.parameters(), strict=True):
        dist.all_reduce(got.grad)
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-9, atol=1e-9)
    for k, kind in enumerate(kinds):
        assert exchange.keys(kind).received == found.received[k, rank]
        assert exchange.keys(kind).total_received == found.received[k].sum()
    _check_indices(exchange, rank, lengths)
    return received


@pytest.mark.parametrize("masks", MASKS, ids=lambda masks: "+".join(masks))
@each_rank
def test_attention_and_gradients_are_those_of_one_process(rank, masks):
    received = [agrees_with_one_process(rank, seed, masks, checkpoints=seed == 1) for seed in range(3)]
    assert any(chain(*everywhere(received)))  # rows did travel


def _check_indices(exchange, rank, lengths):
    sizes = [len(exchange.rows.tokens_of(other)) for other in range(dist.get_world_size())]
    shards = [torch.empty(size, dtype=torch.int64) for size in sizes]
    dist.all_gather(shards, exchange.index)  # all of one size
    assert torch.cat(shards)[exchange.restore_index].tolist() == list(range(int(lengths.sum())))
    at = np.concatenate([np.arange(n) for n in lengths])
    assert exchange.positions.tolist() == at[exchange.index].tolist()
    assert exchange.documents.tolist() == np.repeat(np.arange(len(lengths)), lengths)[exchange.index].tolist()


def kernels_inputs(seed, kind):
    """Whether documents have sequences of their own; ranges and boundaries say the same as the dense mask."""
    found, _, _ = _shards(seed, {kind: 1})
    exchange = ContextExchange(found, masks={kind: 1})
    mask, flex = exchange.dense_mask(kind), exchange.mask_mod(kind)
    c, k = mask.shape
    assert torch.equal(flex(0, 0, torch.arange(c)[:, None], torch.arange(k)[None, :]), mask)
    queries, keys = exchange.ranges(kind)
    assert queries.numel() == 0 or (queries[0, 0] == 0 and queries[-1, 1] == c)
    for (first, last), (low, high) in zip(queries.tolist(), keys.tolist(), strict=True):
        rows = mask[first:last]
        assert rows[:, :low].sum() == rows[:, high:].sum() == 0
        assert rows[0, low]
        assert rows[-1, high - 1]
    several = (keys[1:, 0] < keys[:-1, 1]).any()
    if several:
        with pytest.raises(ValueError, match="several parts of document"):
            exchange.cu_seqlens(kind)
        return False
    found = exchange.cu_seqlens(kind)
    assert found.queries.tolist() == [0, *queries[:, 1].tolist()]
    assert (int(found.keys[-1]), found.queries.dtype) == (k, torch.int32)
    return True


@pytest.mark.parametrize("kind", ["window3", "chunk4"])
@each_rank
def test_what_kernels_take_says_what_the_mask_says(rank, kind):
    assert any(chain(*everywhere([kernels_inputs(seed, kind) for seed in range(4)])))


@each_rank
def test_flex_attention_takes_the_mask(rank):
    """PyTorch's attention by a function of query and key gives what the dense mask gives; forward, uncompiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    kind = "window3"
    exchange = ContextExchange(_shards(1, {kind: 1})[0], masks={kind: 1})
    mask = exchange.dense_mask(kind)
    torch.manual_seed(1 + rank)
    query = torch.randn(len(mask), HEADS, SIZE)
    keys, values = exchange.gather(*torch.randn(2, len(mask), KV_HEADS, SIZE), kind=kind)
    blocks = create_block_mask(exchange.mask_mod(kind), None, None, *mask.shape, device="cpu")
    rows = (each.transpose(0, 1)[None] for each in (query, keys, values))
    found = flex_attention(*rows, block_mask=blocks, enable_gqa=True, scale=1.0)
    wanted = attention(query, keys, values, mask)
    torch.testing.assert_close(found[0].transpose(0, 1).reshape(len(mask), WIDTH), wanted)


@pytest.mark.parametrize("seed", range(2))
@each_rank
def test_dtypes_and_sums_in_float32(rank, seed):
    """Rows of several dtypes and shapes go in one message; gradients of halves are summed in float32."""
    found, lengths, _ = _shards(seed, {"full": 1})
    exchange = ContextExchange(found)
    held = torch.from_numpy(exchange.keys().token)
    total = int(lengths.sum())
    rng = torch.Generator().manual_seed(seed)
    halves = torch.randn(total, 2, 3, generator=rng).bfloat16()
    flags, wide = torch.rand(total, generator=rng) < 0.5, torch.randn(total, 5, generator=rng)
    whole = [halves, torch.arange(total), flags, wide, torch.zeros(total, 0)]
    mine = [each[exchange.index].clone() for each in whole]
    mine[0].requires_grad_()
    got = exchange.gather(*mine)
    for one, all_ in zip(got, whole, strict=True):
        assert torch.equal(one, all_[held])
        assert one.dtype == all_.dtype
    weights = torch.randn(dist.get_world_size(), total, 2, 3, generator=rng).bfloat16()
    (got[0] * weights[rank][held]).sum().backward()
    summed = torch.zeros(total, 2, 3)
    for other in range(dist.get_world_size()):
        needed = torch.from_numpy(exchange.rows.keys_of(other, 0).token)
        summed[needed] += weights[other][needed].float()
    assert torch.equal(mine[0].grad, summed.bfloat16()[exchange.index])
    assert torch.equal(exchange.gather(mine[1]), held)


@each_rank(sizes=(4,))
def test_packs_of_a_plan(rank):
    assert any(chain(*everywhere([of_a_plan(rank, seed) for seed in range(3)])))


def of_a_plan(rank, seed):
    """Packs of a plan: the rows are the plan's pieces, and attention is that of one process."""
    lengths = np.concatenate([lengths_of(seed + i, 4) for i in range(4)])
    cut = balancer.ContextShards(2, int(lengths.max()) + 60, block=2, masks={"full": 1, "window4": 2})
    plan = balancer.balance(lengths, dist.get_world_size(), cost="quadratic:a=9,b=1", cut=cut)
    replicas = [dist.new_group(list(range(first, first + 2))) for first in range(0, dist.get_world_size(), 2)]
    total, exchange = 0, None
    for slot in range(plan.num_slots):
        rows = ShardRows.from_plan(plan, slot, rank // 2)
        if not len(rows.lengths):
            continue
        exchange = ContextExchange(rows, exchange or replicas[rank // 2])
        held = plan.pieces_on_rank(rank, slot)
        assert len(exchange.index) == int((held.stop - held.start).sum())
        whole = torch.arange(int(rows.lengths.sum()), dtype=torch.float64)
        for kind in rows.masks:
            got = exchange.gather(whole[exchange.index], kind=kind)
            sees = dense(rows.lengths, kind, False)[exchange.index]
            assert torch.equal(exchange.dense_mask(kind).double() @ got, sees.double() @ whole)
            total += exchange.keys(kind).received
    return total


@pytest.mark.parametrize("seed", range(2))
@each_rank
def test_labels_are_shifted_before_they_are_sharded(rank, seed):
    """Labels shifted inside documents before they are sharded: the loss is that of documents by themselves."""
    found, lengths, _ = _shards(seed, {"full": 1})
    exchange = ContextExchange(found)
    torch.manual_seed(seed)
    total = int(lengths.sum())
    logits, tokens = torch.randn(total, 11, dtype=torch.float64), torch.randint(0, 11, (total,))
    labels = shift_labels(tokens, lengths)
    entropy = torch.nn.CrossEntropyLoss(reduction="sum")
    mine = entropy(logits[exchange.index], labels[exchange.index])
    dist.all_reduce(mine)
    ends = np.cumsum(lengths)
    alone = sum(entropy(logits[e - n : e - 1], tokens[e - n + 1 : e]) for e, n in zip(ends, lengths, strict=True))
    torch.testing.assert_close(mine, alone, rtol=1e-12, atol=1e-12)


@each_rank
def test_a_rank_without_a_token_joins(rank):
    """A pack of which the last rank has no token: it joins forward and backward, and gets nothing."""
    size = dist.get_world_size()
    cuts = np.linspace(0, 40, size, dtype=np.int64)  # a part for every rank but the last
    document = np.zeros(size - 1, dtype=np.int64)
    rows = ShardRows(np.array([40]), np.arange(size - 1), document, cuts[:-1], cuts[1:], size, {"full": 1})
    exchange = ContextExchange(rows)
    key = torch.arange(40.0, dtype=torch.float64)[:, None].repeat(1, 2)
    mine = key[exchange.index].requires_grad_()
    found = exchange.gather(mine)
    (found.sum() + mine[:0].sum()).backward()
    assert torch.equal(found, key[: 0 if rank == size - 1 else cuts[rank + 1]])
    assert (mine.grad == size - 1 - rank).all()  # of each part, those behind it see every token


@each_rank
def test_nobody_waits_where_no_rank_needs_anothers_rows(rank):
    """Whole documents on every rank: one rank gathers, forward and backward, and waits for none of the others."""
    size = dist.get_world_size()
    exchange = ContextExchange(solvers.context_shards([12] * size, size))
    if rank == 0:
        rows = torch.randn(12, 2, requires_grad=True)
        found = exchange.gather(rows)
        assert torch.equal(found, rows)
        found.sum().backward()
        assert (rows.grad == 1).all()
    assert not exchange.keys().total_received


@each_rank(sizes=(4,))
def test_what_cannot_be_used_is_refused_on_all_ranks(rank):
    found, _, _ = _shards(3, {"full": 1})
    with raises_on([2], ExecutorError, "rank 2 differs from the others in the shards or masks ("):
        ContextExchange(_shards(3 + (rank == 2), {"full": 1})[0])
    with raises_on([2], ArgumentTypeError, "shards must be what solvers.context_shards returns"):
        ContextExchange(None if rank == 2 else found)
    exchange = ContextExchange(found, max_rows_held=found.max_rows_held)
    assert exchange.rows.most_rows_held() == found.max_rows_held
    index = len(exchange.index)
    for use, text in [
        (lambda: ContextExchange(found, masks={"window2": 1}), "the shards were made for other masks than window2"),
        (lambda: ContextExchange(solvers.context_shards([8, 8], 2)), "group must have the 2 ranks that share the pack"),
        (lambda: ContextExchange(found, exchange, max_rows_held=found.max_rows_held - 1), "rows at least that a rank"),
        (lambda: exchange.gather(torch.zeros(index + 1)), "rows of this rank"),
        (lambda: exchange.gather(torch.zeros(index), kind="window2"), "kind must be one of full, got 'window2'"),
        (lambda: exchange.gather(), "give tensors, of which rows are gathered"),
        (lambda: shift_labels(torch.zeros(3, dtype=torch.int64), [1, 1]), "labels must have the 2 tokens of the docu"),
    ]:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (its text is looked at)
            use()
        assert text in str(caught.value)


UNLIKE = {  # what the last rank gathers, and what is said of it
    "dtype": (lambda rows: [rows.bfloat16()], "1 tensor for kind 'window3': bfloat16 [*, 2]"),
    "wider": (lambda rows: [rows[:, [0, 1, 1]]], "1 tensor for kind 'window3': float16 [*, 3]"),
    "two": (lambda rows: [rows, rows], "2 tensors for kind 'window3': float16 [*, 2] and float16 [*, 2]"),
    "list": (lambda rows: [rows.tolist()], "tensors[0] must be a tensor, got list"),
    "kind": (lambda rows: [rows], "kind must be one of full, window3, got 'full3'"),
}


@pytest.mark.parametrize("what", UNLIKE)
@each_rank
def test_ranks_that_gather_unlike_tensors_are_named(rank, what):
    """Gather alike and then, in layers of another kind, on the last rank otherwise."""
    masks, odd = {"full": 1, "window3": 1}, dist.get_world_size() - 1
    exchange = ContextExchange(_shards(3, masks)[0], masks=masks)
    rows = torch.ones(len(exchange.index), 2, dtype=torch.float16)
    exchange.gather(rows, kind="full")
    exchange.gather(rows, rows.double(), kind="full")  # of layers of two sorts, on all ranks alike
    change, text = UNLIKE[what]
    given, kind = (change(rows) if rank == odd else [rows]), "full3" if rank == odd and what == "kind" else "window3"
    alone = what in ("list", "kind")
    if not alone:
        usual = "1 tensor for kind 'window3': float16 [*, 2]"
        text = f'rank {odd} differs from the others in what they gather ("{text}", not "{usual}")'
    with raises_on([odd], ArgumentError if alone else ExecutorError, text):
        exchange.gather(*given, kind=kind)


@each_rank
def test_what_is_gathered_is_agreed_on_once(rank):
    """Ranks ask each other at the first gather of a kind, and not of later packs."""
    exchange = ContextExchange(_shards(3, {"full": 1})[0])
    with mock.patch.object(Talking, "alike", autospec=True, side_effect=Talking.alike) as asked:
        for seed in (3, 4):
            for _ in range(2):
                exchange.gather(torch.ones(len(exchange.index), 2))
            exchange = ContextExchange(_shards(seed, {"full": 1})[0], exchange)
    assert asked.call_count - 2 == 1  # each further pack's shards are agreed on


def prepares(rank):
    global made
    made = ContextExchange(_shards(3, {"full": 1})[0], timeout=TIMEOUT)
    made.gather(torch.zeros(len(made.index)))


def works_until_one_is_lost(rank, seed):
    """Gather until a call breaks; return its error's name, whom it names, and its text."""
    chance = random.Random(f"{seed} {rank}")
    while True:
        try:
            rows = torch.zeros(len(made.index), 4, requires_grad=True)
            made.gather(rows).sum().backward()
        except Exception as error:
            return type(error).__name__, getattr(error, "ranks", None), str(error)
        time.sleep(chance.choice([0, 0.001, 0.01]))


def test_a_rank_that_is_lost_ends_all_others():
    with Ranks(4) as four:
        four.run(prepares)
        four.start(works_until_one_is_lost, 1)
        four.end_after()
        time.sleep(0.3)
        four.kill(2, signal.SIGKILL)
        replies = four.collect(but=2)
        with contextlib.suppress(ProcessLookupError):
            four.kill(2, signal.SIGKILL)
    replies.pop(2)
    for _, (name, _, text) in replies:
        assert name == "ExecutorError", text
        assert "some rank is gone or stands still" in text
