"""A Ray cluster as an Executor, by Ray's public functions."""

import os
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from balancer.errors import InputError
from balancer.offline.engines import LostWorkerError
from solvers.errors import not_installed

_CONNECT_S = 10.0


class RayExecutor(Executor):
    """Workers of a Ray cluster.

    Ray moves the tasks of a lost worker or node to others by itself. Its dashboard shows them by their last argument,
    such as ``part 17``.

    Parameters
    ----------
    address : str, optional
        What ``ray.init`` takes, such as ``"auto"``. Without it that takes the cluster of ``RAY_ADDRESS``, or one that
        runs on this machine, or starts one for as long as this executor is open.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
            from ray import init  # noqa: F401 (a folder of that name has none)
        except ImportError:
            raise InputError(not_installed("the engine 'ray'", "Ray", "ray")) from None
        except Exception as error:  # an installation that is damaged
            raise InputError(f"Ray cannot be imported: {type(error).__name__}: {error}") from None
        self._ray, self.address, self._is_mine = ray, address, False
        self._tasks: dict[Callable[..., Any], Any] = {}  # Ray's, of each function

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a worker call a function; the first call connects."""
        if not self._ray.is_initialized():
            self._connect()
        task, name = self._tasks.setdefault(fn, self._ray.remote(fn)), f"{args[-1] if args else fn.__name__!s:.40}"
        handle, found = task.options(name=name).remote(*args, **kwargs), Future[Any]()
        found.add_done_callback(lambda done: self._ray.cancel(handle) if done.cancelled() else None)
        handle.future().add_done_callback(lambda done: self._settle(found, done.exception(), done, name))
        return found

    def _settle(self, found: Future[Any], error: BaseException | None, done: Future[Any], name: str) -> None:
        """Pass a result on."""
        if not found.set_running_or_notify_cancel():
            return
        if error is None:
            found.set_result(done.result())
        elif isinstance(error, self._ray.exceptions.RayTaskError):  # what the task raised
            found.set_exception(error.cause)
        else:
            found.set_exception(LostWorkerError(
                f"{name}: the Ray worker that had it was lost ({type(error).__name__}), and so were those that tried "
                "again; look at the cluster"
            ))  # fmt: skip

    def _connect(self) -> None:
        # A library sends nobody's data about; whoever wants to says so in the environment.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        host, _, port = (self.address or "").removeprefix("ray://").rpartition(":")
        try:
            if host and port.isdecimal():  # Ray would go on trying for long
                socket.create_connection((host, int(port)), _CONNECT_S).close()
            self._ray.init(address=self.address, log_to_driver=False, logging_level="error")
        except Exception as error:  # whatever it cannot connect to, or start
            what = "a Ray cluster" if self.address is None else f"the Ray cluster at {self.address!r:.100}"
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(f"{what} cannot be had: {reason[0][:200]}") from None
        self._is_mine = True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, if this executor connected to it."""
        if self._is_mine:
            self._ray.shutdown()
            self._is_mine = False
