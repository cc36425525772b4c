"""Dispatch and restore on real ranks: whatever is handed in arrives where the plan says, and comes back."""

import inspect

import pytest

pytest.importorskip("torch")

import dispatch_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from payloads import DTYPES, KINDS, TRAILING
from ranks_of import ranks_of

import solvers

FEW = settings(max_examples=examples(8))
fields = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, len(DTYPES) - 1), st.integers(0, len(TRAILING) - 1)),
    min_size=1,
    max_size=5,
)
seeds = st.integers(0, 2**16)


ranks = ranks_of(1, 2, 4, 8)


def counts_for(ranks):
    return st.lists(st.integers(0, 5), min_size=ranks.size, max_size=ranks.size)


@FEW
@given(st.data(), seeds, fields)
def test_restore_is_the_inverse_of_dispatch(ranks, data, seed, fields):
    counts = data.draw(counts_for(ranks))
    way = data.draw(st.sampled_from(["replicate", "broadcast"]))
    results = ranks.run(cases.round_trip, seed, counts, fields, {"planning": way})
    assert len({digest for digest, _ in results}) == 1
    assert sorted(sample for _, samples in results for sample in samples) == list(range(sum(counts)))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_field(ranks, kind):
    counts = [(3 * rank + 2) % 5 for rank in range(ranks.size)]
    for index in range(len(DTYPES)):
        ranks.run(cases.round_trip, index, counts, {"a": (kind, index, index % len(TRAILING))}, {})


@pytest.mark.parametrize("kind", ["dense", "jagged", "ragged", "str", "list"])
def test_as_on_a_device_where_rows_are_joined_as_tensors(ranks, kind):
    counts = [(3 * rank + 2) % 5 for rank in range(ranks.size)]
    for index in range(len(DTYPES)):
        ranks.run(cases.round_trip_off_the_host, index, counts, {"a": (kind, index, index % len(TRAILING))})


def test_no_samples_at_all(ranks):
    ranks.run(cases.round_trip, 0, [0] * ranks.size, {"a": ("list", 0, 0)}, {})


@FEW
@given(st.data(), seeds)
def test_results_come_home(ranks, data, seed):
    ranks.run(cases.results_come_home, seed, data.draw(counts_for(ranks)))


def test_one_field_without_a_name(ranks):
    assert max(ranks.run(cases.single_fields)) < 1.5


@FEW
@given(st.data(), seeds)
def test_phases_give_the_inputs_and_gradients_of_a_run_without_exchange(ranks, data, seed):
    counts = data.draw(counts_for(ranks).filter(any))
    way = data.draw(st.sampled_from(["replicate", "broadcast"]))
    assert len(set(ranks.run(cases.phases_agree_with_no_exchange, seed, counts, {"planning": way}))) == 1


def test_phases_with_most_ranks_empty(ranks):
    ranks.run(cases.phases_agree_with_no_exchange, 3, [1] + [0] * (ranks.size - 1), {})


@pytest.mark.parametrize("kind", ["list", "ragged"])
def test_what_is_handed_out_is_the_callers(ranks, kind):
    ranks.run(cases.memory_is_the_callers, kind)


def test_what_was_changed_in_place_goes_home(ranks):
    ranks.run(cases.changes_go_home)


def test_micro_batches_are_as_many_on_every_rank(ranks):
    assert len(set(ranks.run(cases.micro_batches))) == 1


def test_a_dispatcher_of_a_step_file(ranks, tmp_path):
    ranks.run(cases.of_a_step_file, str(tmp_path / "step.toml"))
    if ranks.size > 1:
        ranks.run(cases.of_a_step_file_with_a_layout, str(tmp_path / "step.toml"))


@pytest.mark.skipif(
    "keep_together" not in inspect.signature(solvers.partition).parameters, reason="the solvers cannot yet"
)
def test_samples_with_one_key_stay_on_one_rank(ranks):
    held = ranks.run(cases.keeps_together)
    assert sum(len(keys) for keys in held) == len({key for keys in held for key in keys})


def test_another_default_device(ranks):
    ranks.run(cases.with_another_default_device)


@pytest.mark.parametrize(
    ("what", "name", "text"),
    [
        ("sparse", "TypeError", "must hold dense tensors with memory, got one of layout sparse_coo on cpu"),
        ("meta", "TypeError", "must hold dense tensors with memory, got one of layout strided on meta"),
        ("mixed", "ValueError", "entry 0 is torch.float32 [*] on cpu, entry 1 is torch.float32 of shape (2, 2) on cpu"),
        ("dtypes", "ValueError", "entry 1 is torch.int32"),
        ("grad", "ValueError", "requires grad: dispatch moves no gradients"),
        ("objects", "TypeError", "got an array of object; a list of it will do"),
        ("strided", "TypeError", "must be jagged: torch.nested.as_nested_tensor(rows, layout=torch.jagged)"),
        ("kinds", "TypeError", "entry 0 is a tensor, entry 1 is str"),
        ("text", "TypeError", "got str"),
        ("generator", "TypeError", "field 'samples' must be a tensor"),
    ],
)
def test_what_is_no_field_is_refused(ranks, what, name, text):
    for found, _, traceback in ranks.errors(cases.unreadable, what):
        assert found == name
        assert text in traceback


def test_what_one_rank_cannot_read_is_an_error_on_all(ranks):
    bad = ranks.size - 1
    for rank, (name, blamed, text) in enumerate(ranks.errors(cases.bad_input_on_one_rank, bad)):
        assert name == ("TypeError" if rank == bad else "ExecutorError")
        assert rank == bad or blamed == (bad,)
        assert "TypeError: field 'a' must be a tensor" in text
        assert rank == bad or f"rank {bad} failed at reading a mini-batch: TypeError" in text
    assert max(ranks.run(cases.single_fields)) < 1.5  # and all go on


ONE = "one entry a sample, dense of float32 [*, 2] on cpu"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("name", f"field 'a' (none, not '{ONE}')"),
        ("more", "field 'extra' ('one entry a sample, object of uint8 [*] on cpu', not none)"),
        ("column", "column 'extra' ('numbers', not none)"),
        ("items", f"field 'a' ('several items a sample, lists of float32 [*] on cpu', not '{ONE}')"),
        ("dtype", f"field 'a' ('one entry a sample, dense of int32 [*, 2] on cpu', not '{ONE}')"),
        ("shape", f"field 'a' ('one entry a sample, dense of float32 [*, 3] on cpu', not '{ONE}')"),
    ],
)
def test_other_fields_on_one_rank_are_an_error_on_all_that_names_it(ranks, what, text):
    if ranks.size == 1:
        pytest.skip("nobody else")
    odd = ranks.size - 1
    for name, blamed, traceback in ranks.errors(cases.other_fields_on_one_rank, odd, what):
        assert (name, blamed) == ("ExecutorError", (odd,))
        assert f"rank {odd} differs from the others in {text}" in traceback


@pytest.mark.parametrize("form", ["list", "tensor", "array", "scalars"])
def test_a_field_of_single_numbers_that_is_asked_for_as_a_length_is_one(ranks, form):
    (planned, *others) = ranks.run(cases.numbers_are_lengths, form)
    assert len(set(planned)) > 1
    assert others == [planned] * (ranks.size - 1)


def test_unlike_widths_are_said_to_be_padding(ranks):
    if ranks.size == 1:
        pytest.skip("nobody else")
    for name, _, text in ranks.errors(cases.padded_to_unlike_widths):
        assert name == "ExecutorError"
        assert "Padding makes rows of unlike widths: hand in unpadded samples, as a list of tensors" in text


@pytest.mark.parametrize(
    ("steps", "warns"),
    [
        ([[7, 7], [7], [7, 7], [7, 7]], True),
        ([[], [7, 7], [7], [7]], True),
        ([[7, 7], [7], [7, 8], [7], [7], [7]], False),
        ([[7, 7], [7, 7]], False),
        ([[7, 7], [8, 8], [7, 7]], False),
    ],
)
def test_samples_all_of_one_length_are_warned_of_once(ranks, steps, warns):
    first, *others = ranks.run(cases.of_one_length, steps)
    assert others == [[]] * (ranks.size - 1)
    assert len(first) == (warns and ranks.size > 1)
    for text in first:
        assert "all samples of the first 3 steps are of length 7" in text
        assert "Padding makes them alike: hand in unpadded samples, as lists of tensors" in text


@pytest.mark.parametrize("lengths", [[5, 1, 9, 3], [5, 5, 5, 5], [1, 3, 5, 9]])
@pytest.mark.parametrize("same", [True, False])
def test_a_loader_that_deals_nothing_out_is_warned_of_once(ranks, lengths, same):
    first, *others = ranks.run(cases.draws_of, lengths, same)
    assert others == [[]] * (ranks.size - 1)
    told = (
        ranks.size > 1 and same and lengths == [5, 1, 9, 3]
    )  # sorted lengths are alike where ranks share a sorted list
    assert len(first) == 2 * told
    assert all("drew the same mini-batch" in text and "DistributedSampler" in text for text in first)


def test_results_that_one_rank_cannot_read_are_an_error_on_all(ranks):
    bad = ranks.size - 1
    for rank, (name, blamed, text) in enumerate(ranks.errors(cases.bad_results_on_one_rank, bad)):
        assert (name, blamed) == (("ValueError", ()) if rank == bad else ("ExecutorError", (bad,)))
        assert "results must have an entry for each of 2 samples, got 5" in text


def test_a_jagged_tensor_that_is_ragged_elsewhere_is_refused():
    import torch

    from balancer.executor.fields import read

    nested = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)], layout=torch.jagged)
    assert read("x", nested).rows.tolist() == [2, 4]
    with pytest.raises(ValueError, match="field 'x' must be ragged in the dimension after the first; transpose it"):
        read("x", nested.transpose(1, 2))
