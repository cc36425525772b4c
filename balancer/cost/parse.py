"""Cost models from text: a name and coefficients, as the command line and plan files write them."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from string import digits

from balancer.cost.areas import AREAS, Terms, as_terms
from balancer.cost.flexsp import FLEXSP
from balancer.cost.model import CostModel
from balancer.cost.named import flops, module, shown_name
from balancer.cost.sequence_parallel import Sharing
from solvers.errors import UsageError


def _linear(a: int = 1, **sharing: int) -> CostModel:
    return CostModel(a=a, sharing=Sharing.of(sharing))


def _quadratic(*, a: int, b: int, **sharing: int) -> CostModel:
    return CostModel(a=a, b=b, sharing=Sharing.of(sharing))


def _published(name: str) -> CostModel:
    return FLEXSP[name]


def _attention(constant: int = 0, a: int = 0, **terms: int) -> CostModel:
    areas = _taken_areas(terms)
    return CostModel(a=a, sharing=Sharing.of(terms), constant=constant, areas=areas)


def _padded(a: int = 1, b: int = 0, constant: int = 0, **terms: int) -> CostModel:
    areas = _taken_areas(terms)
    if terms:
        raise TypeError("unknown terms")
    return CostModel(a=a, b=b, padded=True, constant=constant, areas=areas)


def _taken_areas(terms: dict[str, int]) -> Terms:
    """Take those terms out that are areas; which sizes they may have is checked."""
    return as_terms({name: terms.pop(name) for name in list(terms) if name.rstrip(digits) in AREAS})


def _convolution(*, a: int, b: int = 0, c: int, p: int = 1) -> CostModel:
    if c == 0:
        raise ValueError("cost coefficient c must be >= 1; where rows are not padded, use quadratic or linear")
    return CostModel(a=a, b=b, c=c, p=p)


COSTS: dict[str, tuple[str, Callable[..., CostModel]]] = {
    "linear": ("linear[:a=1]", _linear),
    "quadratic": ("quadratic:a=24576,b=1", _quadratic),
    "attention": ("attention:constant=500000,a=24576,full=8,window1024=40", _attention),
    "padded": ("padded[:a=1,b=0]", _padded),
    "convolution": ("convolution:a=24576,c=100[,b=0,p=1]", _convolution),
    **{name: (name, partial(_published, name)) for name in FLEXSP},
}
"""Cost models by name: the form of the text, and the function that makes the model."""


def parse_cost(text: str | CostModel) -> CostModel:
    """Read a cost model from its name and coefficients, such as ``"quadratic:a=24576,b=1"``.

    Raises
    ------
    ValueError
        An unknown name (the known ones are listed), or a missing, unknown, repeated or non-integer coefficient.

    Examples
    --------
    >>> str(parse_cost("quadratic:b=1,a=24576"))
    'quadratic:a=24576,b=1'
    """
    if isinstance(text, CostModel):
        return text
    if not isinstance(text, str):
        if hasattr(text, "__array__") or isinstance(text, list | tuple):
            raise TypeError(
                f"cost must be a string or a CostModel, got one number a sample, a {type(text).__name__}: that is for "
                "balancer.balance and balancer.compat.BalancedBatchSampler"
            )
        raise TypeError(f"cost must be a string or a CostModel, got {text!r}")
    name, _, rest = text.partition(":")
    if name == "flops":  # which may name a file, and a file may change: it is read anew
        cost = flops(rest).integer_cost()
        return replace(cost.model, attention=module(rest).attention, model=shown_name(rest),
                       flops_of_unit=cost.factor)  # fmt: skip
    return _of_coefficients(text)


@lru_cache(maxsize=64)
def _of_coefficients(text: str) -> CostModel:
    """Read a text that says all of a cost; most steps of a run have the same one."""
    name, colon, rest = text.partition(":")
    if name not in COSTS:
        known = ", ".join([*(form for form, _ in COSTS.values()), "flops:qwen2-7b"])
        raise ValueError(f"unknown cost {text!r}; known costs are {known}")
    form, make = COSTS[name]
    coefficients: dict[str, int] = {}
    for part in rest.split(",") if colon else []:
        key, _, value = part.partition("=")
        if key in coefficients:
            raise ValueError(
                f"cost {text!r}: {part!r} must be one coefficient, but {key!r} is there already; write {form}"
            )
        # isdigit() alone takes digits of other scripts.
        if not value.isascii() or not value.isdigit():
            raise ValueError(f"cost {text!r}: {part!r} must be one coefficient and a whole number; write {form}")
        coefficients[key] = int(value)
    try:
        return make(**coefficients)
    # Coefficients are keywords of the maker, so Python itself finds those that are missing or unknown.
    except TypeError:
        raise ValueError(f"cost {text!r} lacks a coefficient or names an unknown one; write {form}") from None
    except UsageError as error:
        raise ValueError(f"cost {text!r}: {error}") from None
