"""Functions with the signatures of verl's ``utils/seqlen_balancing.py``: import them from here instead of there.

They take what those take (lists, tensors, TensorDict, DataProto) and return the same types; all else in that module,
such as ``restore_dynamic_batch``, stays verl's own, and takes what these return. Where verl's assert these work, or
raise a ValueError with the reason: fewer items than partitions leave partitions empty, and sizes that do not divide are
equal within one. A test that pins an AssertionError, or the very partitions that Karmarkar-Karp makes, sees others
here: as even or more, and not the same.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.cost import parse_cost
from balancer.cost.given import given_costs
from solvers.errors import ContradictionError, InfeasibleError, UsageError, Wording
from solvers.packing.schedule import schedule_micro_batches
from solvers.partitioning import partition

__all__ = ["get_group_balanced_partitions", "get_seqlen_balanced_partitions", "prepare_dynamic_batch",
           "rearrange_micro_batches", "rearrange_micro_batches_idx"]  # fmt: skip

WORKLOAD = "quadratic:a=24576,b=1"
"""What a sample costs, as verl's ``calculate_workload`` has it."""

_BUDGET = 0.01  # as `balance` has it: these functions, too, run once a step
_NEVER = 2**62  # said by a rank with a sample over the cap: no number of micro-batches holds it


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
    lengths = _as_lengths(seqlen_list)
    group = partition(lengths, k_partitions, equal_counts=bool(equal_size)).group_of_item
    if len(lengths) >= k_partitions > len(np.unique(group)):  # trainers step once a partition
        group = partition(lengths, k_partitions, min_items=1).group_of_item
    return [np.flatnonzero(group == k).tolist() for k in range(k_partitions)]


def _as_lengths(values: Any) -> NDArray[np.int64]:
    """Read a list, an array or a tensor of numbers >= 0; fractions are scaled, as only their ratios matter."""
    # tolist() serves tensors of any device, and imports no torch for it.
    numbers = values.tolist() if hasattr(values, "tolist") else list(values)
    return given_costs("seqlen_list", numbers, len(numbers))


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
    lengths = _as_lengths(seqlen_list)
    if len(lengths) != len(uid_list):
        raise UsageError(f"uid_list must have one entry for each of {len(lengths)} samples, got {len(uid_list)}")
    members: dict[Any, list[int]] = {}
    for index, uid in enumerate(uid_list):
        members.setdefault(uid, []).append(index)
    groups = list(members.values())
    costs = parse_cost(WORKLOAD).sample_costs(lengths)
    parts = get_seqlen_balanced_partitions([int(costs[group].sum()) for group in groups], k_partitions, equal_size=True)
    return [sorted(index for group in part for index in groups[group]) for part in parts]


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
    lengths = _as_lengths(seqlen_list)
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
    # More micro-batches than items are asked for where another rank needs more than this one has items.
    slots = schedule_micro_batches(
        costs, tokens, 1, max_token_len, sync="pipeline", num_slots=count, allow_empty=count > len(tokens),
        time_budget=_BUDGET,
    ).slot_of_item  # fmt: skip
    groups = [np.flatnonzero(slots == slot) for slot in range(count)]
    if use_dynamic_bsz_balance:
        groups = _small_at_the_ends(groups, costs)
    members = np.arange(len(lengths)).reshape(-1, force_group_size)
    return [members[group].reshape(-1).tolist() for group in groups]


def _agreed(tokens: NDArray[np.int64], cap: int, at_least: int, multiple_of: int, group: Any) -> tuple[int, int]:
    """Return how many micro-batches all ranks make, and how few items one has; no rank raises before all know."""
    # A rank that raised here would leave the others waiting in the exchange below for ever.
    failed, count = None, _NEVER
    try:
        found = schedule_micro_batches(tokens, tokens, 1, cap, num_slots="fewest", time_budget=_BUDGET)
        count = -(-max(at_least, int(found.num_slots)) // multiple_of) * multiple_of
    except InfeasibleError as error:
        failed = error
    least = len(tokens)
    if group is not None:
        # One exchange for both: the largest of the negatives is the least.
        count, minus_least = _largest_of_ranks([count, -least], group)
        least = -minus_least
    if failed is not None:
        words = Wording({"cap": "max_token_len", "over_long='own'": None})
        raise failed.in_words(words).as_kind(ContradictionError) from None
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
