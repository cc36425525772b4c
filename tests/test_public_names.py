"""What a user sees of the packages: names in `__all__`, and help that shows names instead of expanded types."""

import pydoc
from types import ModuleType

import pytest

import balancer
import balancer.compat
import solvers
from balancer import _public


@pytest.mark.parametrize("package", [balancer, balancer.compat, solvers])
def test_help_begins_with_names(package):
    for name in package.__all__:
        public = getattr(package, name)
        if callable(public) and not isinstance(public, ModuleType):
            assert "_typing" not in pydoc.render_doc(public, renderer=pydoc.plaintext), name


def test_a_star_brings_every_public_name():
    assert set(_public.__all__) <= set(balancer.__all__)
    assert balancer.__all__ == sorted(balancer.__all__)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: balancer.balance([1, 2], 2, equal_counts="no"), "equal_counts"),
        (lambda: balancer.MicroBatches(9, allow_empty="no"), "cut.allow_empty"),
        (lambda: balancer.Phase("llm", "text", equal_counts="no"), "equal_counts"),
        (lambda: balancer.Phase("llm", "text", every_rank_nonempty="no"), "every_rank_nonempty"),
        (lambda: solvers.partition([1, 2], 2, equal_counts=1), "equal_counts"),
        (lambda: solvers.makespan_lower_bound([1, 2], 2, equal_counts="no"), "equal_counts"),
        (lambda: balancer.compat.BalancedBatchSampler([1, 2], 1, 1, 0, drop_last="no"), "drop_last"),
    ],
)
def test_text_is_no_flag(call, name):
    with pytest.raises(TypeError, match=f"{name} must be [Tt]rue or [Ff]alse, got ('no'|1)"):
        call()
