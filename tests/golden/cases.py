"""Every case by name: what the command line, the library, the solvers and ranks do today.

Cases use nothing but the command line and public names, so they hold wherever modules move to.
"""

from golden import commands, engine, library, stories
from golden.told import attempted

SIZES = (2, 4)
"""How many ranks dispatch."""


def _of_stories(told):
    return {name: (lambda story=story: commands.told_of(story)) for name, story in told.items()}


def _of_call(name):
    return lambda: attempted(library.CALLS[name])


def _of_solvers(family):
    return lambda: engine.told_of(family)


def _of_ranks(size):
    return lambda: dispatched(size)


def dispatched(size):
    """Start so many processes, let them dispatch, and return what each tells."""
    from golden import ranks
    from rank_processes import Ranks

    with Ranks(size) as started:
        return {f"rank {rank}": told for rank, told in enumerate(started.run(ranks.told_by, size))}


def sampled():
    """Return which rows a loader reads of plans and plan files."""
    from golden import ranks

    return ranks.sampled()


CASES = {
    "one_phase": _of_stories(stories.ONE_PHASE),
    "several_phases": _of_stories(stories.SEVERAL_PHASES),
    "other_commands": _of_stories(stories.OTHERS),
    "library": {name: _of_call(name) for name in library.CALLS},
    "solvers": {family: _of_solvers(family) for family in engine.FAMILIES},
    "executor": {f"{size} ranks": _of_ranks(size) for size in SIZES} | {"sampler": sampled},
}
"""Cases by family and name; each family is recorded in a file of its own."""
