"""Real ranks for tests: processes on gloo over loopback that run functions on demand, so that many cases share a start.

The ranks are forked from a server that has imported torch and the trainers, and compiled the planner's kernels; a start
takes a second.
The job's store is in the test's own process, so that any rank may be killed; or on rank 0, where a job has it.
"""

import contextlib
import functools
import importlib.util
import multiprocessing
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path

import torch.distributed as dist

PATIENCE_S = 180  # ranks may have kernels to compile first, on a machine that is busy


class RankFailedError(AssertionError):
    """A function failed on some rank."""


@functools.cache
def server():
    """Return the context whose processes are forked from a server that has imported torch and the trainers.

    It ends, once, a server that tests of ``--jobs`` started in this process: it has no torch, which takes seconds.
    """
    forkserver._forkserver._stop()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the server does not take it over from here by itself
    return context


class Ranks:
    """As many processes as ranks; a context manager, which leaves none behind."""

    def __init__(self, size, timeout=timedelta(seconds=30), store_on_rank_0=False):
        context = server()
        self.size = size
        self.store = None if store_on_rank_0 else dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        port = self.store.port if self.store else 0
        self.pipes, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            arguments = rank, size, port, there, timeout, list(sys.path)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
            port = port or here.recv()

    def start(self, function, *arguments, **named):
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send((function.__code__.co_filename, function.__name__, arguments, named))

    def end_after(self):
        """Let each rank end as soon as it has replied."""
        for pipe in self.pipes:
            pipe.send(None)

    def collect(self, patience=PATIENCE_S, but=None):
        """Return of each rank (True, result), (False, exception, its ranks, traceback), or None: gone, or not asked."""
        replies = [None] * self.size
        waiting = {pipe: rank for rank, pipe in enumerate(self.pipes) if rank != but}
        until = time.monotonic() + patience
        while waiting:
            ready = wait(list(waiting), max(0, until - time.monotonic()))
            if not ready:
                self.stop()
                raise RankFailedError(f"ranks {sorted(waiting.values())} hang")
            for pipe in ready:
                rank = waiting.pop(pipe)
                with contextlib.suppress(EOFError, OSError):
                    replies[rank] = pipe.recv()
        return replies

    def run(self, function, *arguments, **named):
        """Run ``function(rank, *arguments, **named)`` on all ranks and return the results."""
        self.start(function, *arguments, **named)
        replies = self.collect()
        failed = [
            f"rank {rank}: {reply and reply[3]}" for rank, reply in enumerate(replies) if not (reply and reply[0])
        ]
        if failed:
            raise RankFailedError("\n".join(failed))
        return [reply[1] for reply in replies]

    def errors(self, function, *arguments):
        """Run a function that must fail on all ranks; return the exception's name, its ranks and its text, of each."""
        self.start(function, *arguments)
        replies = self.collect()
        assert all(reply is not None and not reply[0] for reply in replies), replies
        return [reply[1:] for reply in replies]

    def kill(self, rank, how=signal.SIGKILL):
        os.kill(self.processes[rank].pid, how)

    def stop(self):
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        until = time.monotonic() + 5
        for process in self.processes:
            process.join(max(0.1, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in self.pipes:
            pipe.close()
        self.processes, self.pipes = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.processes:
            self.stop()


def _found(path, name, arguments, named):
    """Return a function of a file that may be a test's, whose body is meant."""
    from each_rank import BODIES

    file = Path(path)
    if file.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return BODIES.get((file.stem, name)) or getattr(sys.modules[file.stem], name), arguments, named


def _serve(rank, size, port, pipe, timeout, path):
    sys.path[:] = path
    import torch

    multiprocessing.current_process().daemon = False  # so that a loader may have workers
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, port == 0, timeout=timeout, wait_for_workers=False)
    if port == 0:
        pipe.send(store.port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    while True:
        try:
            call = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            break
        if call is None:
            break
        try:
            function, arguments, named = _found(*call)
            reply = True, function(rank, *arguments, **named)
        except Exception as error:  # told to the test, which judges
            reply = False, type(error).__name__, getattr(error, "ranks", ()), traceback.format_exc()
        pipe.send(reply)
    os._exit(0)  # without waiting for collectives that a test broke
