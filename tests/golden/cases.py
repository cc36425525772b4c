"""Every case by name: what the command line, the library and the solvers do today.

Cases use nothing but the command line and public names, so they hold wherever modules move to.
"""

from golden import commands, engine, library, stories
from golden.told import attempted


def _of_stories(told):
    return {name: (lambda story=story: commands.told_of(story)) for name, story in told.items()}


def _of_call(name):
    return lambda: attempted(library.CALLS[name])


def _of_solvers(family):
    return lambda: engine.told_of(family)


CASES = {
    "one_phase": _of_stories(stories.ONE_PHASE),
    "several_phases": _of_stories(stories.SEVERAL_PHASES),
    "other_commands": _of_stories(stories.OTHERS),
    "library": {name: _of_call(name) for name in library.CALLS},
    "solvers": {family: _of_solvers(family) for family in engine.FAMILIES},
}
"""Cases by family and name; each family is recorded in a file of its own."""
