"""The errors that solvers raise besides ``ValueError`` and ``TypeError`` (bad arguments)."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "CertificateError",
    "ContradictionError",
    "InfeasibilityCertificate",
    "InfeasibleError",
    "SolverError",
    "TimeLimitError",
]


@dataclass(frozen=True, slots=True)
class InfeasibilityCertificate:
    """Why no assignment can satisfy the constraints, as data: `needed` exceeds `available`.

    Attributes
    ----------
    constraint : str
        The argument of :func:`solvers.partition` that cannot be met; several are joined by ``" + "``.
    items : sequence of int
        The items that prove it.
    groups : sequence of int
        The groups that these items have to share.
    needed, available : int
        What the items need of the groups (tokens, items, groups; the message says which), and what there is.
    quantity : int or None
        The column of ``sizes``, where the constraint is ``caps``.
    """

    constraint: str
    items: Sequence[int]
    groups: Sequence[int]
    needed: int
    available: int
    quantity: int | None = None

    @property
    def excess(self) -> int:
        """By how much the constraint is missed."""
        return self.needed - self.available


class SolverError(Exception):
    """Base of every error that is about a problem rather than about its arguments."""


class InfeasibleError(SolverError):
    """No assignment satisfies the constraints; the message carries the certificate.

    The message names the constraint, the items or groups that prove it cannot be met, and by how much.
    ``certificate`` holds the same as data (None where the message is all there is).
    """

    def __init__(self, message: str, certificate: InfeasibilityCertificate | None = None) -> None:
        super().__init__(message)
        self.certificate = certificate


class ContradictionError(InfeasibleError, ValueError):
    """Two arguments contradict each other, whatever the items cost: as much a bad argument as infeasible."""


class CertificateError(SolverError):
    """A result does not hold what it claims; the message names the first violated rule."""


class TimeLimitError(SolverError):
    """The budget ended before any feasible assignment was found."""
