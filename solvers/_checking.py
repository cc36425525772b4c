"""What checkers of results have in common; nothing of the solvers."""

from solvers.errors import CertificateError
from solvers.types import SolveStatus


def require(holds: bool, rule: str) -> None:
    """Raise CertificateError unless the rule holds."""
    if not holds:
        raise CertificateError(rule)


def require_status(status: SolveStatus, bound: int, found: int, what: str = "makespan") -> None:
    """Require a bound that what was found reaches, and a status that says whether they are the same."""
    require(0 <= bound <= found, f"lower_bound = {bound} must be within 0..{what} = {found}")
    # Both ways: neither may a result claim too much, nor hide that it is proven.
    optimal = status is SolveStatus.OPTIMAL
    require(optimal == (bound == found), f"status is {status.value} with {what} {found} and lower_bound {bound}")
