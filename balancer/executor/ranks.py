"""What ranks say to each other besides payload, on gloo groups of their own; and errors that all ranks raise alike."""

import copy
import hashlib
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["TIMEOUT", "ExecutorError", "Ranks", "attempt", "check_alike", "check_failed", "listed", "summary"]

TIMEOUT = timedelta(minutes=2)

LONGEST = 300
"""Characters of an error, or of a value, that other ranks hear of."""

_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_T = TypeVar("_T")


class ExecutorError(RuntimeError):
    """Ranks cannot go on together; the message says why.

    Attributes
    ----------
    ranks : tuple of int
        The ranks that are the reason, by their number in the group; empty where no one knows.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class _Talk:
    """Objects said on one group, by a gloo group of its own: neither the caller's collectives nor a GPU are waited for.

    All ranks of the group make this at the same time.
    """

    def __init__(self, group: Any, timeout: timedelta) -> None:
        self.members = dist.get_process_group_ranks(group)
        self.size, self.rank = len(self.members), dist.get_rank(group)
        self.group = dist.new_group(self.members, timeout, "gloo", use_local_synchronization=True)
        self._room = 0  # bytes of the first collective: as many as the longest message so far

    def gather(self, said: Any) -> list[Any]:
        """Return what all ranks say, in one collective, or two where a message outgrows all before."""
        words = pickle.dumps(said)
        if self.size == 1:
            return [said]
        rows = self._rows(words[: self._room], len(words), self._room)
        lengths = [int.from_bytes(row[:8], "little") for row in rows]
        if max(lengths) > self._room:
            self._room = 1 << (max(lengths) - 1).bit_length()  # grows on all ranks alike
            rows = self._rows(words, len(words), self._room)
        return [pickle.loads(row[8 : 8 + length]) for row, length in zip(rows, lengths, strict=True)]  # noqa: S301 (of own ranks)

    def _rows(self, words: bytes, length: int, room: int) -> list[bytes]:
        mine = torch.frombuffer(bytearray(length.to_bytes(8, "little") + words.ljust(room, b"\0")), dtype=torch.uint8)
        rows = list(torch.empty((self.size, 8 + room), dtype=torch.uint8, device="cpu"))
        dist.all_gather(rows, mine, self.group)
        return [row.numpy().tobytes() for row in rows]

    def tell(self, said: Any) -> Any:
        """Return what the first rank says; what the others give is not looked at."""
        box = [said]
        if self.size > 1:
            dist.broadcast_object_list(box, self.members[0], self.group, device=torch.device("cpu"))
        return box[0]


class Ranks:
    """A data-parallel group, and the replica peers that follow the first of them, their leader.

    All of these ranks make it at the same time. Replica peers (tensor, context and pipeline shards) have one rank in
    their data-parallel groups; what their leader says counts, and they get what their leader gets.
    """

    def __init__(self, group: Any = None, replicas: Any = None, timeout: timedelta = TIMEOUT) -> None:
        self._given = group, replicas, timeout
        self.group = dist.group.WORLD if group is None else group
        self.timeout = timeout
        with self._waiting_for("making groups"):
            self._talk = _Talk(self.group, timeout)
            self._peers = None if replicas is None else _Talk(replicas, timeout)
        self.replicas = replicas
        self.rank, self.size = self._talk.rank, self._talk.size
        self.leads = self._peers is None or self._peers.rank == 0
        self.on_cuda = "nccl" in str(dist.get_backend_config(self.group))  # else CUDA payload goes through the host
        self.tensor: dict[str, Ranks] = {}  # by phase with a layout, the GPUs that have windows of one shard
        self._memory: dict[str, Tensor] = {}
        if len(set(places := self._of_peers(self.rank))) > 1:
            raise ValueError(f"replica peers must have one rank in their data-parallel groups, got {places}")

    def twin(self) -> "Ranks":
        """Return the same ranks with groups of their own, for another thread. All ranks call this."""
        # Two threads must not use one group: their collectives would meet in another order on another rank.
        group, replicas, timeout = self._given
        if self.on_cuda:
            group, replicas = _copy(self.group), None if replicas is None else _copy(replicas)
        twin = Ranks(group, replicas, timeout)
        twin.tensor = {name: each.twin() for name, each in self.tensor.items()}
        return twin

    def without_replicas(self) -> "Ranks":
        """Return the same for what every replica peer has of its own, such as activations."""
        alone = copy.copy(self)
        alone.__dict__.update(replicas=None, _peers=None, leads=True)
        return alone

    # Saying.

    def say(self, what: Any) -> list[Any]:
        """Return what all ranks say; of replica peers the leader's word counts."""
        with self._waiting_for("hearing from all ranks"):
            said = self._talk.gather(what) if self.leads else None
            return said if self._peers is None else self._peers.tell(said)  # type: ignore[return-value]

    def tell(self, what: Any) -> Any:
        """Return what rank 0 says."""
        with self._waiting_for("hearing from rank 0"):
            said = self._talk.tell(what) if self.leads else None
            return said if self._peers is None else self._peers.tell(said)

    def _of_peers(self, what: Any) -> list[Any]:
        """Return what this rank's replica peers say, the leader first."""
        with self._waiting_for("hearing from replica peers"):
            return [what] if self._peers is None else self._peers.gather(what)

    def alike(self, doing: str, make: Callable[[], _T | None], show: Callable[[_T], Mapping[str, Any]]) -> _T:
        """Make something, and return it once all ranks, replica peers too, have made theirs and show the same.

        None is nothing made, because another rank failed. `show` says by name what must be alike; what follows from
        other things comes last. Where a rank failed it raises its error, and the others an ExecutorError; where what
        they show differs, all raise one. One small collective.
        """
        found, failure = attempt(make)
        shown = {} if found is None else dict(show(found))
        digest = hashlib.sha256(repr(shown).encode()).digest()
        peers = self._of_peers((failure is None, digest))
        said = self.say((all(each == (True, digest) for each in peers), digest))
        if failure is None and found is not None and all(each == (True, digest) for each in said):
            return found
        # Some rank did not agree: all of them say more.
        everywhere = self.say(self._of_peers((None if failure is None else summary(failure), shown)))
        if failure is not None:
            raise failure
        check_failed(doing, [next((error for error, _ in peers if error), None) for peers in everywhere])
        for rank, peers in enumerate(everywhere):
            check_alike({peer: each for peer, (_, each) in enumerate(peers)}, rank)
        check_alike({rank: peers[0][1] for rank, peers in enumerate(everywhere)})
        raise ExecutorError(f"{doing} did not end alike on all ranks")

    # Groups, and payload.

    def groups_of(self, rank_sets: Iterable[range]) -> dict[range, Any]:
        """Make of sets of ranks the process groups that this rank is in. All ranks call this, with the same sets.

        Only members take part in making one, so that a rank waits for as many as there are rounds of sets without a
        common rank, whatever the number of ranks. Replica peers have groups of their own.
        """
        groups = {}
        # Every rank walks through the same rounds in the same order, or two groups would wait for each other.
        for disjoint in _rounds(rank_sets):
            mine = next((one for one in disjoint if self.rank in one), None)
            # torch names a group by the number of groups that its members have made, so each rank makes one a round.
            others = sorted(set(range(self.size)).difference(*disjoint))
            with self._waiting_for("making process groups"):
                made = self.group_of(mine or others)
            if mine is not None:
                groups[mine] = made
        return groups

    def group_of(self, ranks: Iterable[int]) -> Any:
        """Make a process group of ranks, this one among them. Its members alone call this."""
        members = dist.get_process_group_ranks(self.group)
        return dist.new_group([members[rank] for rank in ranks], self.timeout, use_local_synchronization=True)

    def memory(self, what: str, size: int, device: torch.device) -> Tensor:
        """Return uint8[size] that is used again at the next call, as fresh pages cost more than copies."""
        held = self._memory.get(what)
        if held is None or len(held) < size or held.device != device:
            held = self._memory[what] = torch.empty(size + size // 4, dtype=torch.uint8, device=device)
        return held[:size]

    def all_to_all(self, sent: Tensor, sends: list[int], receives: list[int]) -> Tensor:
        """Send so many bytes to each rank; return what came, by rank, in memory that the next call uses again.

        CUDA payload goes over the caller's group, if that has NCCL, and else through host memory.
        """
        device, group = sent.device, self.group if sent.is_cuda and self.on_cuda else self._talk.group
        sent = sent if group is self.group else sent.cpu()
        came = self.memory("came", sum(receives), sent.device)
        with self._waiting_for("exchanging payload"):
            if self.leads and (self.size > 1 or len(came)):
                dist.all_to_all_single(came, sent, receives, sends, group)
            if self._peers is not None and len(came):
                peers = self.replicas if came.is_cuda else self._peers.group
                dist.broadcast(came, self._peers.members[0], peers)
        return came.to(device)

    def all_gather(self, mine: Tensor) -> Tensor:
        """Return what all ranks have, of one shape, one after the other."""
        return self._of_all("gathering windows", _ALL_GATHER, mine, self.size * len(mine))

    def reduce_scatter(self, given: Tensor) -> Tensor:
        """Return the sum of what all ranks have for this one: each gives for one rank after the other."""
        return self._of_all("summing gradients", _REDUCE_SCATTER, given, len(given) // self.size)

    def _of_all(self, doing: str, collective: Callable[..., Any], given: Tensor, count: int) -> Tensor:
        group = self.group if given.is_cuda and self.on_cuda else self._talk.group
        there = given if group is self.group else given.cpu()
        found = there.new_empty((count, *given.shape[1:]))
        with self._waiting_for(doing):
            collective(found, there.contiguous(), group=group)
        return found.to(given.device)

    @contextmanager
    def _waiting_for(self, doing: str) -> Iterator[None]:
        """Say, where a collective breaks or runs out of time, which one did: no one can tell whose fault it is."""
        began = time.monotonic()
        try:
            yield
        except ExecutorError:
            raise
        except RuntimeError as error:
            cause = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ExecutorError(
                f"{doing} failed after {time.monotonic() - began:.1f} s of at most "
                f"{self.timeout.total_seconds():g} s: some rank is gone or stands still, or they stand in different "
                f"calls ({cause})"
            ) from error


def attempt(make: Callable[[], _T]) -> tuple[_T | None, Exception | None]:
    """Return what a function makes, or the error that it raises: the other ranks must hear of any."""
    try:
        return make(), None
    except Exception as error:
        return None, error


def summary(error: BaseException) -> str:
    """Return an error as other ranks hear of it: its type and its message, cut short if it is long."""
    return _short(" ".join(f"{type(error).__name__}: {error}".split()))


def check_failed(doing: str, errors: Sequence[str | None]) -> None:
    """Raise ExecutorError if some rank failed at something, given the error of each as text; nothing has moved then."""
    ranks_of: dict[str, list[int]] = {}
    for rank, text in enumerate(errors):
        if text:
            ranks_of.setdefault(text, []).append(rank)
    if ranks_of:
        told = [f"{listed(ranks)} failed at {doing}: {text}" for text, ranks in ranks_of.items()]
        more = ["..."] if len(told) > 4 else []
        raise ExecutorError("; ".join(told[:4] + more), sorted(rank for ranks in ranks_of.values() for rank in ranks))


def check_alike(said: Mapping[int, Mapping[str, Any]], peers_of: int | None = None) -> None:
    """Raise ExecutorError unless all ranks say the same: it names those that differ from most, and the first name.

    `said` is by rank; on a tie the lowest rank decides. With `peers_of`, it is by replica peer of that rank.
    """
    for name in dict.fromkeys(name for each in said.values() for name in each):
        held = {rank: repr(each[name]) if name in each else "none" for rank, each in said.items()}
        usual = Counter(held.values()).most_common(1)[0][0]  # of equally many the first: the lowest rank decides
        if odd := [rank for rank, one in held.items() if one != usual]:
            who = f"{listed(odd)} {'differs' if len(odd) == 1 else 'differ'} from the others"
            raise ExecutorError(
                f"{who if peers_of is None else f'replica peers of rank {peers_of} differ'} in {name} "
                f"({_short(held[odd[0]])}, not {_short(usual)}); nothing has been exchanged",
                odd if peers_of is None else [peers_of],
            )


def listed(ranks: Sequence[int]) -> str:
    """Return ``"rank 3"`` or ``"ranks 1, 4, 5"``, the first sixteen of them."""
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _rounds(rank_sets: Iterable[range]) -> list[list[range]]:
    """Divide sets of ranks, those of one size ascending, into few rounds of sets without a common rank."""
    rounds: list[list[range]] = []
    for one in rank_sets:
        free = next((earlier for earlier in rounds if earlier[-1].stop <= one.start), None)
        if free is None:
            rounds.append(free := [])
        free.append(one)
    return rounds


def _copy(group: Any) -> Any:
    return dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True)
