"""Dispatch and restore on real ranks: whatever is handed in arrives where the plan says, and comes back."""

import json
import warnings
from itertools import chain
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from dispatch_cases import (
    FIELDS,
    PHASES,
    Encoders,
    alone,
    dispatcher,
    gradient,
    lengths_of,
    losses,
    multimodal_batch,
    stacked,
)
from each_rank import each_rank, everywhere, raises_on, same_everywhere
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from payloads import DTYPES, KINDS, TRAILING, batch_of, form, plain
from ranks_of import ranks_of

from balancer import MicroBatches, ModuleLayout, StepLayout
from balancer.executor import Dispatcher, ExecutorError, RaggedTensor, anchored, exchange
from balancer.executor.fields import read

PHASES_OF_NUMBERS = {"vision": "images", "llm": "tokens"}
FEW = settings(max_examples=examples(6))
WAYS = st.sampled_from(["replicate", "broadcast"])
fields = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, len(DTYPES) - 1), st.integers(0, len(TRAILING) - 1)),
    min_size=1,
    max_size=5,
)
seeds = st.integers(0, 2**16)
counts_of_eight = st.lists(st.integers(0, 5), min_size=8, max_size=8)  # of which as many count as there are ranks

ranks = ranks_of(1, 3, 8)


def round_trip(rank, seed, counts, fields, **arguments):
    """Dispatch and restore fields of any kind; a rank without samples gives none of them."""
    batches = [batch_of(seed, other, n, fields) for other, n in enumerate(counts)]
    wanted = {name: [entry for batch in batches for entry in plain(batch[name])] for name in fields}
    mine = batches[rank] if counts[rank] else {}
    lengths = {"tokens": lengths_of(seed, rank, counts[rank])} if counts[rank] else {}
    out = dispatcher(length="tokens", **arguments).dispatch(mine, lengths)
    if sum(counts):
        for name in fields:
            assert plain(out[name]) == [wanted[name][sample] for sample in out.samples], name
            usual = next(batch[name] for batch, n in zip(batches, counts, strict=True) if n)
            if fields[name][0] != "lists" or any(map(len, batches[rank][name])):
                assert form(out[name]) == form(usual), name
    back = out.restore()
    assert set(back) == (set(fields) if sum(counts) else set())
    for name in back:
        assert plain(back[name]) == plain(batches[rank][name]), name
    same_everywhere(out.plan.digest())
    assert sorted(chain(*everywhere(out.samples.tolist()))) == list(range(sum(counts)))


@FEW
@given(seed=seeds, counts=counts_of_eight, fields=fields, way=WAYS)
@each_rank
def test_restore_is_the_inverse_of_dispatch(rank, seed, counts, fields, way):
    round_trip(rank, seed, counts[: dist.get_world_size()], fields, planning=way)


def fives(most=5):
    return [(3 * rank + 2) % most for rank in range(dist.get_world_size())]


@each_rank
def test_every_kind_of_field_and_none(rank):
    for kind in KINDS:
        every = {f"{index}": (kind, index, index % len(TRAILING)) for index in range(len(DTYPES))}
        round_trip(rank, 1, fives(), every)
    round_trip(rank, 1, [0] * dist.get_world_size(), every)


@each_rank
def test_as_on_a_device_where_rows_are_joined_as_tensors(rank):
    with mock.patch.object(exchange, "_on_host", return_value=False):
        for index in range(len(DTYPES)):
            every = {kind: (kind, index, index % len(TRAILING)) for kind in KINDS}
            round_trip(rank, index, fives(), every, placement=("any", "relocate")[index % 2])


@FEW
@given(seed=seeds, counts=counts_of_eight)
@each_rank
def test_results_come_home(rank, seed, counts):
    data, lengths = {"id": list(range(counts[rank]))}, {"tokens": lengths_of(seed, rank, counts[rank])}
    out = dispatcher(length="tokens").dispatch(*((data, lengths) if counts[rank] else ({},)))
    first = np.concatenate(([0], np.cumsum(counts)))
    mine = np.arange(first[rank], first[rank + 1])
    results = {
        "loss": torch.from_numpy(out.samples * 1.5),
        "logprobs": [torch.full((int(sample) % 5, 2), float(sample)) for sample in out.samples],
        "text": [f"answer {sample}" for sample in out.samples],
    }
    home = out.restore(results)
    assert home["loss"].tolist() == (mine * 1.5).tolist()
    assert home["text"] == [f"answer {sample}" for sample in mine]
    assert [row.tolist() for row in home["logprobs"]] == [[[float(s)] * 2] * (s % 5) for s in mine.tolist()]
    assert out.restore(torch.from_numpy(out.samples)).tolist() == mine.tolist()


@each_rank
def test_one_field_without_a_name(rank):
    rows = [torch.full((1 + 3 * rank + i,), rank * 10 + i) for i in range(3)]
    jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    for data in (rows, jagged, RaggedTensor(torch.cat(rows), [len(row) for row in rows])):
        out = dispatcher().dispatch(data)
        assert form(out.data) == form(data)
        assert plain(out.restore()) == plain(data)
    assert out.plan.imbalance_ratio < 1.5


LARGE = 2**18  # elements of 8 bytes, in two fields: what is kept and handed out again


@pytest.mark.parametrize("kind", ["list", "ragged"])
@each_rank
def test_what_is_handed_out_is_the_callers(rank, kind):
    """It is nobody else's for as long as any row of it lives, and none of what was handed in."""
    made, kept = dispatcher(placement="any"), []
    for step in range(4):
        rows = [torch.full((LARGE + rank + i,), 100 * step + 10 * rank + i) for i in range(2)]
        data = RaggedTensor(torch.cat(rows), [len(row) for row in rows]) if kind == "ragged" else rows
        out = made.dispatch(data)
        home, results = out.restore(), out.restore(out.data)
        for row in rows + ([data.values] if kind == "ragged" else []):
            row.fill_(-1)
        entries = (list(entry.rows()) if kind == "ragged" else entry for entry in (out.data, home, results))
        kept += [(row, int(row[0])) for entry in entries for row in entry[1:]]
        assert all((row == value).all() for row, value in kept)
    assert len(kept) >= 4


@each_rank
def test_what_was_changed_in_place_goes_home(rank):
    """The mini-batch that restore takes home is the one that was handed out, as it is by then."""
    rows = [torch.full((5 + rank + i,), float(rank)) for i in range(3)]
    fields = {"list": rows, "flat": RaggedTensor(torch.cat(rows), [len(row) for row in rows]), "dense": torch.ones(3)}
    out = dispatcher(length="list", placement="any").dispatch(fields)
    for row in out["list"]:
        row += 1
    out["flat"].values.mul_(2)
    out["dense"].sub_(3)
    for _ in range(2):
        for row in out["list"]:  # as those do who want gradients of embeddings
            row.requires_grad_()
        out["flat"].values.requires_grad_()
        home = out.restore()
        assert not any(row.requires_grad for row in home["list"])
        assert all(torch.equal(row, was + 1) for row, was in zip(home["list"], rows, strict=True))
        assert torch.equal(home["flat"].values, 2 * torch.cat(rows))
        assert torch.equal(home["dense"], torch.full((3,), -2.0))


@each_rank
def test_another_default_device(rank):
    """What travels over the control group is on the host, whatever the default is."""
    torch.set_default_device("meta")
    try:
        rows = [torch.full((5 + rank + i,), float(rank), device="cpu") for i in range(3)]
        fields = {"rows": rows, "number": [1.5, 2.5, 3.5], "text": ["", "a", "b"], "none": [[], [], []]}
        home = dispatcher(length="t", planning="broadcast").dispatch(fields, {"t": [1, 2, 3]}).restore()
    finally:
        torch.set_default_device(None)
    assert [row.tolist() for row in home.pop("rows")] == [row.tolist() for row in rows]
    assert home == {"number": fields["number"], "text": fields["text"], "none": fields["none"]}


@each_rank
def test_a_dispatcher_of_a_step_file(rank, tmp_path):
    """It does what one with the same arguments does, with the file's layout too; a file for other ranks is refused."""
    size, path = dist.get_world_size(), f"{tmp_path}/step.toml.{rank}"

    def write(text):
        with open(path, "w") as file:
            file.write(text)

    lengths = np.random.default_rng(rank).integers(1, 20, 8)
    write(f'ranks = {size}\n[[phase]]\nlength = "tokens"\n[cut]\ntokens = 50\nsync = "step"\n')
    made, same = Dispatcher.from_step(path, length="tokens"), Dispatcher(length="tokens", cut=MicroBatches(50, "step"))
    plans = [each.dispatch({"id": list(range(8))}, {"tokens": lengths}).plan for each in (made, same)]
    assert plans[0].digest() == plans[1].digest()
    write('batch_per_rank = 3\n[[phase]]\nlength = "tokens"\n[cut]\ntokens = 50\n')
    made = Dispatcher.from_step(path)
    made.dispatch({"id": [1, 2, 3]}, {"tokens": [1, 2, 3]})
    with pytest.raises(ValueError, match=rf"step.toml.{rank}: batch_per_rank is 3, but this rank hands in 4 samples"):
        made.dispatch({"id": [1, 2, 3, 4]}, {"tokens": [1, 2, 3, 4]})
    write('[[phase]]\nlength = "tokens"\nmin_samples_per_rank = 3\nmax_samples_per_rank = 2\n')
    with pytest.raises(ValueError, match=rf"step.toml.{rank}: .*min_samples_per_rank"):
        Dispatcher.from_step(path)
    write(f"ranks = {size + 1}\n")
    with pytest.raises(ValueError, match=f"ranks must be {size}, those of the group, got {size + 1}"):
        Dispatcher.from_step(path)
    layouts = {"vision": ModuleLayout(dp=size), "llm": ModuleLayout(tp=size)}
    with open(f"{path}.json", "w") as file:
        json.dump(StepLayout(layouts, mode="before").to_json(), file)
    write(f'layout = "{path}.json"\n[[phase]]\nname = "vision"\nlength = "images"\n'
          '[[phase]]\nname = "llm"\nlength = "tokens"\n')  # fmt: skip
    if size > 1:
        made, same = Dispatcher.from_step(path), Dispatcher(phases=PHASES_OF_NUMBERS, layouts=layouts)
        one, other = (each.dispatch({"id": [0, 1]}, {"images": [3, 1], "tokens": [5, 4]}).step for each in (made, same))
        assert one.digest() == other.digest()
        assert one.setup.layout == other.setup.layout is not None


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (lambda: [torch.eye(3).to_sparse()], TypeError, "dense tensors with memory, got one of layout sparse"),
        (lambda: torch.empty(3, device="meta"), TypeError, "with memory, got one of layout strided on meta"),
        (lambda: [torch.ones(2), torch.ones(2, 2)], ValueError, "entry 1 is torch.float32 of shape (2, 2) on cpu"),
        (lambda: [[torch.ones(2)], [torch.ones(2).int()]], ValueError, "entry 1 is torch.int32"),
        (lambda: [torch.ones(2, requires_grad=True)], ValueError, "requires grad: dispatch moves no gradients"),
        (lambda: torch.ones(2, requires_grad=True), ValueError, "requires grad: dispatch moves no gradients"),
        (lambda: np.asarray([object()]), TypeError, "got an array of object; a list of it will do"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), TypeError, "must be jagged: torch.nested"),
        (lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged).transpose(1, 2),
         ValueError, "field 'x' must be ragged in the dimension after the first; transpose it"),
        (lambda: [torch.ones(2), "text"], TypeError, "entry 0 is a tensor, entry 1 is str"),
        (lambda: torch.ones(()), ValueError, "got a tensor of no dimensions"),
        (lambda: [[torch.ones(())]], ValueError, "must hold items of at least one dimension, got scalars"),
        (lambda: "text", TypeError, "got str"),
        (lambda: iter([1]), TypeError, "field 'x' must be a tensor"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of nested tensors
def test_what_is_no_field_is_refused(data, error, text):
    with pytest.raises(error) as caught:
        read("x", data(), lambda name, size, device: torch.empty(size, dtype=torch.uint8, device=device))
    assert text in str(caught.value)


@each_rank
def test_what_one_rank_cannot_read_is_an_error_on_all_and_all_go_on(rank):
    bad = dist.get_world_size() - 1
    with raises_on([bad], TypeError, "field 'a' must be a tensor"):
        mine = {"a": {"no": "field"} if rank == bad else torch.zeros(2, 2)}
        dispatcher(length="tokens").dispatch(mine, {"tokens": [1, 2]})
    out = dispatcher(length="tokens", equal_counts=True).dispatch({"a": torch.zeros(2, 2)}, {"tokens": [1, 2]})
    with raises_on([bad], ValueError, "results must have an entry for each of 2 samples, got 5"):
        out.restore(torch.zeros(5 if rank == bad else 2))
    assert len(out.restore(torch.zeros(2))) == 2


ONE = "one entry a sample, dense of float32 [*, 2] on cpu"
A = torch.zeros(2, 2)


ODD = {  # what the last rank hands in, and what is said of it
    "name": ({"b": A[0]}, {}, f"field 'a' (none, not '{ONE}')"),
    "more": ({"a": A, "extra": [1, 2]}, {},
             "field 'extra' ('one entry a sample, object of uint8 [*] on cpu', not none)"),
    "column": ({"a": A}, {"extra": [1, 1]}, "column 'extra' ('numbers', not none)"),
    "items": ({"a": [[A[0]], []]}, {},
              f"field 'a' ('several items a sample, lists of float32 [*] on cpu', not '{ONE}')"),
    "dtype": ({"a": A.int()}, {}, f"field 'a' ('one entry a sample, dense of int32 [*, 2] on cpu', not '{ONE}')"),
    "shape": ({"a": A[:, [0, 1, 1]]}, {},
              f"field 'a' ('one entry a sample, dense of float32 [*, 3] on cpu', not '{ONE}')"),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
@each_rank(sizes=(3,))
def test_other_fields_on_one_rank_are_an_error_on_all_that_names_it(rank, what):
    last, (odd, columns, text) = dist.get_world_size() - 1, ODD[what]
    mine, given = (odd, {"tokens": [1, 2], **columns}) if rank == last else ({"a": A}, {"tokens": [1, 2]})
    with raises_on([last], ExecutorError, f"differs from the others in {text}"):
        dispatcher(length="tokens").dispatch(mine, given)


FORMS = {
    "list": list, "tensor": torch.tensor, "array": np.asarray, "scalars": lambda held: list(torch.tensor(held)),
}  # fmt: skip


@pytest.mark.parametrize("given", FORMS)
@each_rank
def test_a_field_of_whole_numbers_that_is_asked_for_as_a_length_is_one(rank, given):
    lengths = lengths_of(3, rank, 6) + 1
    ids = [torch.full((int(length),), rank) for length in lengths]
    out = dispatcher(length="length").dispatch({"ids": ids, "length": FORMS[given](lengths.tolist())})
    usual = dispatcher(length="tokens").dispatch({"ids": ids}, {"tokens": lengths})
    assert same_everywhere(out.plan.digest()) == usual.plan.digest()
    assert [int(length) for length in out["length"]] == list(map(len, out["ids"]))
    assert [int(length) for length in out.restore()["length"]] == lengths.tolist()
    images = [[3 + rank, 4], [5], [], [6], [7], [1, 2, 3]]
    made, text = dispatcher(phases=PHASES_OF_NUMBERS), {"tokens": [20] * 6}
    out = made.dispatch({"images": images}, text)  # lists of them are items
    assert len(out.plan["vision"].lengths) == 8 * dist.get_world_size()
    assert out.plan.digest() == made.dispatch({"id": ids}, text | {"images": images}).plan.digest()
    with pytest.raises(TypeError, match="column 'names' must be integers"):
        dispatcher(length="names").dispatch({"names": ["a", "b"]})


@each_rank(sizes=(3,))
def test_unlike_widths_are_said_to_be_padding(rank):
    with pytest.raises(ExecutorError, match="Padding makes rows of unlike widths: hand in unpadded samples, as a list"):
        dispatcher(length="ids").dispatch({"ids": torch.zeros(3, 5 + rank, dtype=torch.int64)})


def warned(steps):
    """Dispatch steps, each the lengths of this rank's samples; return what is warned of."""
    made = Dispatcher(length="tokens")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for lengths in steps:
            made.dispatch(*(({"id": list(range(len(lengths)))}, {"tokens": lengths}) if lengths else ({},)))
    return [str(each.message) for each in told]


@pytest.mark.parametrize(
    ("steps", "warns"),
    [
        ([[7, 7], [7], [7, 7], [7, 7]], True),
        ([[], [7, 7], [7], [7]], True),
        ([[7, 7], [7], [7, 8], [7], [7], [7]], False),
        ([[7, 7], [7, 7]], False),
    ],
)
@each_rank
def test_samples_all_of_one_length_are_warned_of_once(rank, steps, warns):
    told = warned(steps)
    assert len(told) == (warns and rank == 0 and dist.get_world_size() > 1)
    for text in told:
        assert "all samples of the first 3 steps are of length 7" in text
        assert "Padding makes them alike: hand in unpadded samples, as lists of tensors" in text


@pytest.mark.parametrize(
    ("lengths", "same"), [([5, 1, 9, 3], True), ([5, 1, 9, 3], False), ([5, 5, 5, 5], True), ([1, 3, 5, 9], True)]
)
@each_rank
def test_a_loader_that_deals_nothing_out_is_warned_of_once(rank, lengths, same):
    mine = lengths if same else [length + rank for length in lengths]
    told = warned([mine, mine])
    # Sorted lengths are alike where ranks share a sorted list.
    assert len(told) == (dist.get_world_size() > 1 and rank == 0 and same and lengths == [5, 1, 9, 3])
    assert all("drew the same mini-batch" in text and "DistributedSampler" in text for text in told)


# Phases.


def phases_agree_with_no_exchange(rank, seed, counts, **arguments):
    """Inputs, loss and gradients of all parameters equal those of one process that holds everything."""
    batches = [multimodal_batch(seed, other, n) for other, n in enumerate(counts)]
    model = Encoders()
    wanted = alone(model, batches)
    sum(losses(model, wanted, range(len(wanted))), torch.zeros(())).backward()
    gradients = [gradient(parameter).clone() for parameter in model.parameters()]
    model.zero_grad()
    data, lengths = batches[rank] if counts[rank] else ({}, {})
    step = dispatcher(phases=PHASES, fields=FIELDS, **arguments).dispatch(data, lengths)
    images = [image for fields, _ in batches for pixels in fields["pixels"] for image in pixels]
    audio = [mel for fields, _ in batches for mel in fields["mel"] if len(mel)]
    text = [piece for fields, _ in batches for piece in fields["text"]]
    names = [name for fields, _ in batches for name in fields["id"]]
    assert plain(step["pixels"]) == plain([images[i] for i in step.plan["vision"].samples_on_rank(rank)])
    assert plain(step["mel"]) == plain([audio[i] for i in step.plan["audio"].samples_on_rank(rank)])
    assert plain(step["text"]) == plain([text[i] for i in step.samples if len(text[i])])
    assert step["id"] == [names[i] for i in step.samples]
    vision = model.images(stacked(step["pixels"], 4)) * 1
    heard = model.audio(stacked(step["mel"], 3))
    own = model.embed(torch.cat(step["text"]) if step["text"] else torch.empty(0, dtype=torch.int64))
    inputs = step.inputs("llm", {"vision": vision, "audio": heard}, own)
    rows = inputs.rows()
    assert len(rows) == len(step.samples)
    for row, sample in zip(rows, step.samples, strict=True):
        torch.testing.assert_close(row, wanted[sample], rtol=1e-12, atol=1e-12)
    anchored(sum(losses(model, rows, step.samples.tolist()), torch.zeros(())), inputs.values).backward()
    for parameter, wanted_gradient in zip(model.parameters(), gradients, strict=True):
        mine = gradient(parameter)
        dist.all_reduce(mine)
        torch.testing.assert_close(mine, wanted_gradient, rtol=1e-9, atol=1e-9)
    home, given = step.restore(), batches[rank][0] if counts[rank] else {name: [] for name in batches[0][0]}
    assert {name: plain(field) for name, field in home.items()} == {name: plain(field) for name, field in given.items()}
    same_everywhere(step.plan.digest())


@FEW
@given(seed=seeds, counts=counts_of_eight.filter(lambda counts: counts[0]), way=WAYS)
@each_rank
def test_phases_give_the_inputs_and_gradients_of_a_run_without_exchange(rank, seed, counts, way):
    phases_agree_with_no_exchange(rank, seed, counts[: dist.get_world_size()], planning=way)


@each_rank
def test_phases_with_most_ranks_empty(rank):
    phases_agree_with_no_exchange(rank, 3, [1] + [0] * (dist.get_world_size() - 1))
