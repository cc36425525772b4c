"""Items to steps, each within a window: tall items share steps, so that fewer steps wait for one of them."""

from solvers.deferral._problem import UNLIMITED, windows
from solvers.deferral.solver import defer, least_makespans
from solvers.deferral.types import MOST_STEPS, DeferralResult
from solvers.deferral.verify import check_deferral

__all__ = ["MOST_STEPS", "UNLIMITED", "DeferralResult", "check_deferral", "defer", "least_makespans", "windows"]
