"""What docs/how_to/layouts.md shows is what comes out."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "layouts.md"


def test_blocks(capsys):
    names: dict = {}
    blocks = re.findall(r"```python\n((?!>>> ).*?)```", PAGE.read_text(), re.DOTALL)  # others are doctests
    for block in blocks:
        exec(block, names)
    shown = re.findall(r"^print\(.*#(?: replicas:)? ([^:\n]*)(?:: .*)?$", "".join(blocks), re.MULTILINE)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [line.replace(" and ", " ").split(",")[0] for line in shown]
    assert len(printed) == 3
