"""What a package index shows: the README, whose links lead to files that are not there.

All else stands in pyproject.toml. With a `Source` in its `[project.urls]` links and the picture lead to the release's
tag there; without one they are left out, and the words of the links stay.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def for_an_index(text: str, source: str | None, version: str) -> str:
    """Return a page of the repository as it can be read elsewhere: with absolute links, or without any."""
    if source is None:
        text = re.sub(r"<picture>.*?</picture>\n*", "", text, flags=re.DOTALL)
        return re.sub(r"\[([^\]]+)\]\((?!\w+:)[^)]+\)", r"\1", text)
    text = re.sub(r'(src(?:set)?=")(?!\w+:)', rf"\1{source}/raw/v{version}/", text)
    return re.sub(r"\]\((?!\w+:|#)", f"]({source}/blob/v{version}/", text)


if __name__ == "__main__":
    from setuptools import setup

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = for_an_index(readme, project.get("urls", {}).get("Source"), project["version"])
    setup(long_description=shown, long_description_content_type="text/markdown")
