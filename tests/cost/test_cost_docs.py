"""What docs/how_to/cost_models.md shows is what comes out."""

import re
from pathlib import Path

from published import PUBLISHED

from balancer.cost import MODELS, flops, module

PAGE = Path(__file__).parent.parent.parent / "docs" / "how_to" / "cost_models.md"


def test_the_table_of_models():
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d,]+) \| ([\d,]+) M \| ([\d,]+) \| ([\d,]+) \|$", PAGE.read_text(), re.M)
    assert [name for name, *_ in rows] == list(MODELS)
    for name, *cells in rows:
        forward = flops(name, backward=False)
        published = PUBLISHED[name] // 10**6
        assert [int(cell.replace(",", "")) for cell in cells] == [
            module(name).parameters,
            published,
            forward.a,
            forward.b,
        ]
