"""What checkers of results have in common; nothing of the solvers."""

from fractions import Fraction

from solvers.errors import CertificateError
from solvers.types import STOP_AT, SolveStatus


def require(holds: bool, rule: str) -> None:
    """Raise CertificateError unless the rule holds."""
    if not holds:
        raise CertificateError(rule)


def require_status(
    status: SolveStatus, bound: int, found: int, what: str = "makespan", stop_at: Fraction = STOP_AT
) -> None:
    """Require a bound that what was found reaches, and a status that says how near they are."""
    require(0 <= bound <= found, f"lower_bound = {bound} must be within 0..{what} = {found}")
    near = int(found) <= int(bound) * (1 + stop_at)
    proven = SolveStatus.OPTIMAL if bound == found else SolveStatus.WITHIN if near else SolveStatus.FEASIBLE
    # Both ways: neither may a result claim too much, nor hide what is proven; but who searches for the optimum alone
    # may say that time was up.
    right = status is proven or (status is SolveStatus.TIME_LIMIT and bound < found)
    require(right, f"status is {status.value} with {what} {found} and lower_bound {bound}")
