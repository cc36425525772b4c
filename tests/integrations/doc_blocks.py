"""The code blocks of docs/in_your_trainer.md, which tests run as they stand."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "in_your_trainer.md"


def block(heading):
    """Return the code of the only block right under a heading, as bytecode whose lines are the page's."""
    text = PAGE.read_text()
    section = re.search(rf"^(#+) {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert section, f"{PAGE.name} has no section {heading!r}"
    code = re.findall(r"^```python\n(.*?)^```", section[2], re.M | re.S)
    assert len(code) == 1, f"section {heading!r} of {PAGE.name} has {len(code)} blocks of Python"
    first = text[: section.start(2) + section[2].index(code[0])].count("\n")
    return compile("\n" * first + code[0], PAGE, "exec")
