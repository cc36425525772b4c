"""Functions with the signatures of verl's ``utils/seqlen_balancing.py``: change the import, or call :func:`patch`.

They take what those take (lists, CPU tensors, TensorDict, DataProto) and return the same types. Where those assert they
work, or raise a ValueError with the reason: fewer items than partitions leave partitions empty, and sizes that do not
divide are equal within one. A test that pins an AssertionError, or the very partitions that Karmarkar-Karp makes, sees
others here: as even or more, and not the same.
"""

import copy
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.compat._partitions import (
    Patched,
    as_lengths,
    balanced_partitions,
    cap_called,
    capped_groups,
    fewest_groups,
    inverse,
    put_in_place,
    unbalance,
)
from balancer.cost import parse_cost
from solvers.errors import ContradictionError, InfeasibleError, UsageError

__all__ = ["calculate_workload", "ceildiv", "get_group_balanced_partitions", "get_reverse_idx",
           "get_seqlen_balanced_partitions", "log_seqlen_unbalance", "patch", "prepare_dynamic_batch",
           "rearrange_micro_batches", "rearrange_micro_batches_idx", "restore_dynamic_batch",
           "roundup_divisible"]  # fmt: skip

WORKLOAD = "quadratic:a=24576,b=1"
"""What a sample costs, as :func:`calculate_workload` has it."""

_NEVER = 2**62  # said by a rank with a sample over the cap: no number of micro-batches holds it


def calculate_workload(seqlen_list: Any) -> Any:
    """Return ``24576 * length + length**2`` of a tensor, an array or a number, in its own type.

    Examples
    --------
    >>> calculate_workload(np.array([0, 2]))
    array([    0, 49156])
    """
    return 24576 * seqlen_list + seqlen_list**2


def ceildiv(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(a // -b)


def roundup_divisible(a: int, b: int) -> int:
    """Return the smallest multiple of b that is at least a."""
    return ceildiv(a, b) * b


def get_seqlen_balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Partition items so that the sums of their lengths are even.

    Parameters
    ----------
    seqlen_list : list, array or CPU tensor of numbers >= 0
    k_partitions : int
    equal_size : bool
        Every partition gets as many items, within one where that does not divide.

    Returns
    -------
    list of list of int
        Indices, ascending within a partition. No partition is empty if there are enough items.

    Examples
    --------
    >>> sorted(get_seqlen_balanced_partitions([5, 3, 9, 1, 2, 4], 2, equal_size=True))
    [[0, 1, 5], [2, 3, 4]]
    """
    return balanced_partitions(seqlen_list, k_partitions, equal_size)


def get_group_balanced_partitions(seqlen_list: Any, uid_list: Sequence[Any], k_partitions: int) -> list[list[int]]:
    """Partition samples so that those of one uid stay together, each partition with as many uids.

    Unlike there, samples of one uid need not be adjacent.

    Returns
    -------
    list of list of int
        Indices of samples, ascending within a partition.

    Raises
    ------
    ValueError
        Not one uid for each sample.

    Examples
    --------
    >>> sorted(get_group_balanced_partitions([5, 5, 9, 1, 2, 2, 4, 3], list("aabbccdd"), 2))
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    lengths = as_lengths("seqlen_list", seqlen_list)
    if len(lengths) != len(uid_list):
        raise UsageError(f"uid_list must have one entry for each of {len(lengths)} samples, got {len(uid_list)}")
    members: dict[Any, list[int]] = {}
    for index, uid in enumerate(uid_list):
        members.setdefault(uid, []).append(index)
    groups = list(members.values())
    costs = parse_cost(WORKLOAD).sample_costs(lengths)
    parts = balanced_partitions([int(costs[group].sum()) for group in groups], k_partitions, equal_size=True)
    return [sorted(index for group in part for index in groups[group]) for part in parts]


def log_seqlen_unbalance(seqlen_list: Any, partitions: Sequence[Sequence[int]], prefix: str) -> dict[str, float]:
    """Return what the sums of lengths were as consecutive shares, and are in the partitions, under six names.

    Examples
    --------
    >>> log_seqlen_unbalance([5, 3, 1, 1], [[0], [1, 2, 3]], "len")["len/balanced_max"]
    5
    """
    return unbalance(seqlen_list, partitions, prefix)


def get_reverse_idx(idx_map: Any) -> Any:
    """Return the inverse of a permutation: ``reverse[idx_map[i]] == i``, in the type of `idx_map`.

    Examples
    --------
    >>> get_reverse_idx([2, 0, 1])
    [1, 2, 0]
    """
    return inverse(idx_map)


def rearrange_micro_batches_idx(
    seqlen_list: Any,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
    allow_empty: bool = True,
) -> list[list[int]]:
    """Return the second value of :func:`rearrange_micro_batches` given lengths: the samples of each micro-batch.

    No micro-batch ever holds more than `max_token_len` tokens, and their number is the fewest that keeps to it.

    Parameters
    ----------
    seqlen_list : list, array or CPU tensor of int
        Tokens of each sample: what is the sum of its attention mask there.
    max_token_len : int
    dp_group : ProcessGroup, optional
        All its ranks get as many micro-batches as the one that needs most; needs torch.
    num_batches_divided_by : int, optional
        Their number is a multiple of this.
    same_micro_num_in_dp : bool
    min_num_micro_batch : int, optional
    use_dynamic_bsz_balance : bool
        Put the micro-batches that cost least at both ends, where a pipeline fills and drains.
    force_group_size : int
        So many consecutive samples stay in one micro-batch.
    allow_empty : bool
        Whether micro-batches may be empty where a rank has fewer samples than its peers need micro-batches.

    Returns
    -------
    list of list of int

    Raises
    ------
    ValueError
        On all ranks of `dp_group`: a sample, or a group of samples, longer than `max_token_len` (an
        :class:`solvers.InfeasibleError` too), or a micro-batch that would be empty.

    Examples
    --------
    >>> sorted(rearrange_micro_batches_idx([7, 7, 7], max_token_len=8))
    [[0], [1], [2]]
    """
    lengths = as_lengths("seqlen_list", seqlen_list)
    if force_group_size < 1 or len(lengths) % force_group_size:
        raise UsageError(f"force_group_size must divide the {len(lengths)} samples, got {force_group_size}")
    # From here on a group of consecutive samples is one item; `members` turns items into samples again.
    costs = parse_cost(WORKLOAD).sample_costs(lengths).reshape(-1, force_group_size).sum(axis=1)
    tokens = lengths.reshape(-1, force_group_size).sum(axis=1)
    fewest, divisor = min_num_micro_batch or 1, num_batches_divided_by or 1
    group = dp_group if same_micro_num_in_dp else None
    count, fewest_samples = _agreed(tokens, max_token_len, fewest, divisor, group)
    if count > fewest_samples and not allow_empty:
        raise UsageError(
            f"{count} micro-batches are needed, but a rank has only {fewest_samples} samples or groups of them, and "
            "none may be empty",
            ("give every rank more samples", "or a larger max_token_len"),
        )
    groups = capped_groups(costs, tokens, max_token_len, count)
    if use_dynamic_bsz_balance:
        groups = _small_at_the_ends(groups, costs)
    members = np.arange(len(lengths)).reshape(-1, force_group_size)
    return [members[group].reshape(-1).tolist() for group in groups]


def _agreed(tokens: NDArray[np.int64], cap: int, at_least: int, multiple_of: int, group: Any) -> tuple[int, int]:
    """Return how many micro-batches all ranks make, and how few items one has; no rank raises before all know."""
    # A rank that raised here would leave the others waiting in the exchange below for ever.
    failed, count = None, _NEVER
    try:
        count = fewest_groups(tokens, cap, at_least, multiple_of)
    except InfeasibleError as error:
        failed = error
    least = len(tokens)
    if group is not None:
        # One exchange for both: the largest of the negatives is the least.
        count, minus_least = _largest_of_ranks([count, -least], group)
        least = -minus_least
    if failed is not None:
        raise failed.in_words(cap_called("max_token_len")).as_kind(ContradictionError) from None
    if count == _NEVER:
        raise UsageError(f"max_token_len = {cap} is too small for a sample, or a group of them, of another rank")
    return count, least


def _largest_of_ranks(numbers: list[int], group: Any) -> list[int]:
    """Return of each number the largest that any rank of a group has. All of them call it."""
    import torch
    import torch.distributed as dist

    # NCCL moves tensors of GPUs alone; where gloo is there, those of the CPU do.
    on_cuda = "gloo" not in str(dist.get_backend_config(group)) and torch.cuda.is_available()
    largest = torch.tensor(numbers, dtype=torch.int64, device="cuda" if on_cuda else "cpu")
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    return [int(number) for number in largest.tolist()]


def _small_at_the_ends(groups: list[NDArray[np.int64]], costs: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    # The largest in the middle, then by turns to its left and right.
    ordered = sorted(groups, key=lambda group: -int(costs[group].sum()))
    return ordered[::2][::-1] + ordered[1::2]


def rearrange_micro_batches(
    batch: Any,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
) -> tuple[list[Any], list[list[int]]]:
    """Split a TensorDict into micro-batches of at most `max_token_len` tokens.

    Parameters
    ----------
    batch : TensorDict
        With ``input_ids``, jagged, or dense beside an ``attention_mask``.
    max_token_len, dp_group, num_batches_divided_by, same_micro_num_in_dp, min_num_micro_batch, \
    use_dynamic_bsz_balance, force_group_size
        As :func:`rearrange_micro_batches_idx` has them.

    Returns
    -------
    list of TensorDict, list of list of int
        The micro-batches, none empty, and the samples of each.

    Raises
    ------
    ValueError
        As :func:`rearrange_micro_batches_idx`.
    """
    ids = batch["input_ids"]
    lengths = ids.offsets().diff() if ids.is_nested else batch["attention_mask"].sum(dim=1)
    groups = rearrange_micro_batches_idx(
        lengths, max_token_len, dp_group, num_batches_divided_by, same_micro_num_in_dp, min_num_micro_batch,
        use_dynamic_bsz_balance, force_group_size, allow_empty=False,
    )  # fmt: skip
    return [_selected(batch, group) for group in groups], groups


def _selected(batch: Any, group: list[int]) -> Any:
    """Return the samples of a TensorDict; what has no entry a sample stays as it is."""
    import torch
    from tensordict import TensorDict

    index = torch.tensor(group, dtype=torch.long)
    found = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and value.is_nested:
            # A jagged tensor takes no list of indices, so it is taken apart and joined again.
            rows = value.unbind()
            found[name] = torch.nested.as_nested_tensor([rows[i] for i in group], layout=torch.jagged)
        else:
            found[name] = value[index] if value.shape else value
    return TensorDict(found, batch_size=len(group))


def prepare_dynamic_batch(
    data: Any,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
) -> tuple[list[Any], list[list[int]]]:
    """Split a DataProto as :func:`rearrange_micro_batches` splits its tensors.

    Returns
    -------
    list of DataProto, list of list of int
    """
    tensors, groups = rearrange_micro_batches(
        data.batch, max_token_len, dp_group, num_batches_divided_by, same_micro_num_in_dp, min_num_micro_batch,
        use_dynamic_bsz_balance,
    )  # fmt: skip
    others = [{name: value[group] for name, value in data.non_tensor_batch.items()} for group in groups]
    made = [
        # A copy for each: what one worker writes there must not reach the others.
        type(data).from_dict(dict(tensor), other, meta_info=copy.deepcopy(data.meta_info))
        for tensor, other in zip(tensors, others, strict=True)
    ]
    return made, groups


def restore_dynamic_batch(data: Any, batch_idx_list: list[list[int]]) -> Any:
    """Return the rows of a tensor, dense or jagged, in the order that they had before they were split.

    Raises
    ------
    ValueError
        The lists do not name every row once.
    """
    import torch

    indices = list(chain.from_iterable(batch_idx_list))
    if len(indices) != data.shape[0]:
        raise UsageError(f"batch_idx_list must name each of {data.shape[0]} rows once, got {len(indices)}")
    order = inverse(indices)
    if data.is_nested:
        rows = data.unbind()
        return torch.nested.as_nested_tensor([rows[i] for i in order], layout=torch.jagged)
    return data[torch.tensor(order, dtype=torch.long)]


_REPLACED = ("get_seqlen_balanced_partitions", "get_group_balanced_partitions", "rearrange_micro_batches",
             "prepare_dynamic_batch", "restore_dynamic_batch", "get_reverse_idx", "log_seqlen_unbalance")  # fmt: skip


def patch() -> Patched:
    """Put these functions in place of an installed verl's, in every module that has them.

    Call it before training begins, in each process: in Ray, by ``runtime_env={"worker_process_setup_hook": patch}``.

    Returns
    -------
    list of str
        What was replaced: ``module.name``. As a context manager, verl's own are put back at the end.

    Raises
    ------
    ImportError
        verl is not installed.
    ValueError
        Its version lacks one of them.
    """
    from verl.utils import seqlen_balancing as theirs

    return put_in_place("verl", theirs, globals(), _REPLACED)
