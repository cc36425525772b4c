"""Who was lost: ranks whose call broke say so in the job's store, and agree there on who did not."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

__all__ = ["Lookout"]

POLL_S = 0.02  # between two looks of a rank whose call broke
GRACE = 1 / 12  # of the timeout: how long all but one wait for the report of that one
LEAVES = 1 / 4  # of the timeout: how long a rank waits for others to read who was lost


class Lookout:
    """Finds out which of a rank's peers are lost, over all groups by which they exchange.

    While all goes well, nothing is written. A rank whose call broke, or waited for too long, reports in the store.
    Ranks that wait look for reports, give up their own call, and report too. A rank that does not report is lost. One
    rank writes the verdict, which all others take over, so that all name the same ranks: the first that sees all ranks
    but one report, and that one not within a grace, or that sees the time end. No rank leaves before the others have
    read the verdict, as the store may leave with its holder. A store whose holder stands still does not answer: no
    request waits for it for long.

    `name` is the same on all of these peers, and on no others; `members` are their data-parallel ranks by global rank;
    `timeout` is that of their calls.
    """

    def __init__(self, name: str, members: Mapping[int, int], timeout: timedelta) -> None:
        self.members, self._me, self._timeout = members, dist.get_rank(), timeout.total_seconds()
        # The job's own store: another one needs an address, which a job that is there already does not tell. Torch
        # before 2.9 does not give it out; who was lost is then not known.
        of_job = getattr(dist.group.WORLD, "get_group_store", None)
        self._store: Any = None if of_job is None else dist.PrefixStore(f"seqbalancer/{name}", of_job())
        self._answers, self._one_at_a_time = of_job is not None, threading.Lock()
        self._verdict: list[int] | None = None
        self.broken: tuple[str, tuple[int, ...]] | None = None  # what no call can go on after, and whose fault it is

    def others_report(self) -> bool:
        """Return whether some rank's call broke, so that this one's cannot go well."""
        return self._verdict is not None or bool(self._asked(lambda: self._store.check(["reports"])))

    def tell(self, what: str) -> None:
        """Say to all others that this rank failed between two calls, and at what: they hear of it as they wait."""
        self._asked(lambda: self._store.compare_set("told", "", json.dumps([self._me, what])))

    def told(self) -> tuple[int, str] | None:
        """Return which rank failed between two calls, and at what; None: none said so."""
        if not self._asked(lambda: self._store.check(["told"])):
            return None
        rank, what = json.loads(self._asked(lambda: self._store.get("told")) or '[-1, ""]')
        return rank, what

    def lost(self, until: float) -> list[int] | None:
        """Report, and return the global ranks that did not until a time of the monotonic clock; None: not known."""
        with self._one_at_a_time:
            if self._verdict is None:
                grace = time.monotonic() + GRACE * self._timeout
                self._asked(self._report)
                while self._verdict is None and self._answers:
                    self._verdict = self._asked(partial(self._look, grace, until))
                    time.sleep(POLL_S)
                if self._verdict is not None and self._me not in self._verdict:
                    self._leave(len(self.members) - len(self._verdict))
            return self._verdict

    def _report(self) -> None:
        self._store.set(f"reports/{self._me}", b"broke")
        self._store.add("reports", 1)

    def _look(self, grace: float, until: float) -> list[int] | None:
        """Return the verdict, if there is one or it is time for it."""
        if not self._store.check(["verdict"]):
            missing = len(self.members) - self._store.add("reports", 0)
            if missing and time.monotonic() < (grace if missing == 1 else until):
                return None
            lost = [rank for rank in self.members if missing and not self._store.check([f"reports/{rank}"])]
            self._store.compare_set("verdict", "", json.dumps(sorted(lost)))
        verdict: list[int] = json.loads(self._store.get("verdict"))
        return verdict

    def _leave(self, living: int) -> None:
        """Wait until so many ranks have read the verdict."""
        until = time.monotonic() + LEAVES * self._timeout
        readers = self._asked(lambda: self._store.add("readers", 1))
        while self._answers and readers < living and time.monotonic() < until:
            time.sleep(POLL_S)
            readers = self._asked(lambda: self._store.add("readers", 0))

    def _asked(self, request: Callable[[], Any]) -> Any:
        """Return what the store answers; None, from then on at once, if it does not."""
        answers: list[Any] = []

        def ask() -> None:
            with suppress(RuntimeError):
                answers.append(request())

        if self._answers:
            thread = threading.Thread(target=ask, name="seqbalancer store", daemon=True)
            thread.start()
            thread.join(max(2.0, self._timeout / 6))
            self._answers = bool(answers)
        return answers[0] if answers else None
