"""What can be wrong with what a user hands in: one class, so that the command line knows it."""


class InputError(ValueError):
    """A file, a column or a value that cannot be used; one or two lines that name it and the rule it breaks."""


class PlanError(Exception):
    """A plan, or a plan file, that does not hold what it claims; the message names the first violated rule."""


class FitError(Exception):
    """A fit that does not describe its measurements; the message says by how much."""
