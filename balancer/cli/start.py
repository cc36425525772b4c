"""Where the command line begins: what takes long to be there is begun before this process imports all that it needs."""

import gc
import sys
from typing import NoReturn

from balancer.offline.ahead import begin_as_asked

__all__ = ["main"]


def main() -> NoReturn:
    """As :func:`balancer.cli.main.main`, of this process's words.

    What is imported stays until the end; looking through it for garbage, while it is imported and four times at the
    end, would take 0.4 s of each command.
    """
    gc.disable()
    try:
        begin_as_asked(sys.argv[1:])
        from balancer.cli.main import main
    except KeyboardInterrupt:  # later ones are seen to there
        print("balancer: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    gc.freeze()
    gc.enable()
    try:
        main()
    finally:
        gc.disable()
        gc.freeze()
