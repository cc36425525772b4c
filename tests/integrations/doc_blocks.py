"""The code blocks of docs/how_to/in_your_trainer.md, which tests run as they stand."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "in_your_trainer.md"


def block(heading):
    """Return the code of the first block right under a heading, as bytecode whose lines are the page's."""
    text = PAGE.read_text()
    section = re.search(rf"^(#+) {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert section, f"{PAGE.name} has no section {heading!r}"
    code = re.search(r"^```python\n(.*?)^```", section[2], re.M | re.S)
    assert code, f"section {heading!r} of {PAGE.name} has no block of Python"
    lines_before = text[: section.start(2) + code.start(1)].count("\n")
    return compile("\n" * lines_before + code[1], PAGE, "exec")
