"""A Ray cluster on this machine, started and ended by a process of its own; the one that plans goes on meanwhile.

Run as a script, with the number of workers: it says where the cluster is, and stops it when its input ends, that is,
when its parent process says so or has ended. It imports nothing of the package.
"""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["main", "without_monitors"]

_GIVE_UP_S = 60.0  # after input has ended while Ray begins: it waits for a first worker even if that was killed


@contextlib.contextmanager
def without_monitors() -> Iterator[None]:
    """Have ``ray.init`` start no autoscaler, and nobody who sends logs to the driver: a third of all daemons' work.

    There is no public way; a Ray that has no such settings starts what it always does.
    """
    from ray._private import parameter

    before = parameter.RayParams

    class Fewer(before):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            self.no_monitor, self.include_log_monitor = True, False

    parameter.RayParams = Fewer
    try:
        yield
    finally:
        parameter.RayParams = before


def main() -> None:
    """Start a cluster, print a line of JSON, and end it at the first line of input, or its end."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nobody else is to answer
    begun, over = threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(begun, over), daemon=True).start()
    try:
        import ray

        found = _begun(ray, int(sys.argv[1]))
    except Exception as error:
        found = {"error": str(error).strip() or type(error).__name__}
    begun.set()
    with contextlib.suppress(BrokenPipeError):  # whoever asked has ended
        print(json.dumps(found), file=answer, flush=True)
    if "error" not in found:
        over.wait()
        ray.shutdown()


def _listen(begun: threading.Event, over: threading.Event) -> None:
    sys.stdin.readline()
    over.set()
    if not begun.wait(_GIVE_UP_S):
        os._exit(1)  # killing most of what it started; the other processes are to end by themselves


def _begun(ray: Any, num_workers: int) -> dict[str, Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with without_monitors():
        ray.init(address="local", num_cpus=num_workers, log_to_driver=False, logging_level="error")
    has_token = os.environ.get("RAY_AUTH_MODE") == "token"  # as Ray sets it for what it starts
    return {"address": ray.get_runtime_context().gcs_address, "has_token": has_token}


if __name__ == "__main__":
    main()
