"""The errors that solvers raise besides ``ValueError`` and ``TypeError`` (bad arguments)."""


class SolverError(Exception):
    """Base of every error that is about a problem rather than about its arguments."""


class InfeasibleError(SolverError):
    """No assignment satisfies the constraints; the message carries the certificate.

    The message names the constraint, the items or groups that prove it cannot be met, and by how much.
    """


class CertificateError(SolverError):
    """A result does not hold what it claims; the message names the first violated rule."""


class TimeLimitError(SolverError):
    """The budget ended before any feasible assignment was found."""
