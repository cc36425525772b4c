"""Costs by name that were measured for sequence-parallel groups, and published: FlexSP's."""

from fractions import Fraction

from balancer.cost.model import CostModel
from balancer.cost.sequence_parallel import Sharing

_BANDWIDTH = {2: "119.54", 4: "104.07", 8: "96.5", 16: "10.33", 32: "5.94", 64: "4.87"}  # GB/s; beyond 64 assumed flat
_PER_MS = 10**9  # a work unit is a picosecond


def _cost(square: str, linear: str, slot: str, layers: int, hidden: int) -> CostModel:
    """From the paper's milliseconds: of a token squared, of a token, of a slot; all to all, 16 bytes a hidden unit."""
    a, b, overhead = (round(Fraction(ms) * _PER_MS) for ms in (linear, square, slot))
    volume = Fraction(16 * layers * hidden, 2**20)  # MB a token, so that MB / (GB/s) is ms
    exchange = tuple((d, round(volume / Fraction(speed) * _PER_MS)) for d, speed in _BANDWIDTH.items())
    return CostModel(a=a, b=b, sharing=Sharing(exchange=exchange, overhead=overhead))


FLEXSP: dict[str, CostModel] = {
    "flexsp-7b-a100": _cost("5.128e-6", "0.1839576", "629.3563", 32, 4096),
    "flexsp-13b-a100": _cost("9.2852e-6", "0.3060", "1132.56", 40, 5120),
    "flexsp-30b-a100": _cost("15.4262e-6", "0.8036", "2789.36", 60, 6656),
}
"""Picoseconds on A100-40G: Wang et al., FlexSP, 2024 (arXiv:2412.01523); shapes from PKU-DAIR/Hetu-Galvatron."""
