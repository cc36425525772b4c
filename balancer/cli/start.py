"""Where the command line begins: what takes long is begun before this process imports what the command needs."""

import gc
import sys
from typing import NoReturn

from balancer.offline.ahead import begin_as_asked, fork_as_asked

__all__ = ["main"]


def main() -> NoReturn:
    """As :func:`balancer.cli.main.main`, of this process's words.

    What is imported stays until the end; looking through it for garbage while it is imported, and at the end, would
    take 0.4 s of each command.
    """
    gc.disable()
    try:
        begin_as_asked(words := sys.argv[1:])
        from balancer.cli.main import cli, main

        cli.commands.get(words[0] if words else "")  # imports it
        fork_as_asked(words)
    except KeyboardInterrupt:  # as `main` itself has it
        sys.stderr.write("balancer: interrupted\n")
        sys.exit(130)
    except OSError as error:  # no more files or processes; a folder that is gone
        sys.stderr.write(f"balancer: {error}\n")
        sys.exit(2)

    gc.freeze()
    gc.enable()
    try:
        main()
    finally:
        gc.disable()
        gc.freeze()
