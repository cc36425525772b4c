"""The code blocks of pages on trainers in docs/how_to, which tests run as they stand."""

import re
from pathlib import Path

NAMES = "dispatcher.md", "trainers.md", "measure.md"
PAGES = [Path(__file__).parents[2] / "docs" / "how_to" / name for name in NAMES]


def block(heading):
    """Return the code of the first block right under a heading, as bytecode whose lines are the page's."""
    found = ((page, page.read_text()) for page in PAGES)
    sections = [
        (page, text, re.search(rf"^(#+) {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, re.M | re.S))
        for page, text in found
    ]
    ((page, text, section),) = [one for one in sections if one[2]]
    code = re.search(r"^```python\n(.*?)^```", section[2], re.M | re.S)
    assert code, f"section {heading!r} of {page.name} has no block of Python"
    lines_before = text[: section.start(2) + code.start(1)].count("\n")
    return compile("\n" * lines_before + code[1], page, "exec")


def blocks(page):
    """Return the blocks of Python of each section, by its heading."""
    found, heading, code = {}, "", None
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if code is not None:
                found.setdefault(heading, []).append("\n".join(code))
            code = [] if line == "```python" and code is None else None
        elif code is not None:
            code.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return found
