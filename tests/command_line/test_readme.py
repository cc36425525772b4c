"""What the README shows is what comes out; and the links in the docs lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()


def test_the_report_that_the_readme_shows(command, monkeypatch):
    shown = re.search(r"--out out/plan.parquet\n\n(.*?)\n```", README, re.DOTALL)[1].splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    arguments = "--ranks 64 --ranks-per-node 8 --batch-per-rank 16 --length text_tokens+image_tokens+audio_tokens"
    printed = command("plan", ROOT / "data" / "omni_mix_dev.parquet", *arguments.split()).out.splitlines()
    printed = [line.rstrip() for line in printed]
    timed = next(i for i, line in enumerate(shown) if line.startswith("104,096 samples in"))
    assert printed[:timed] == shown[:timed]
    assert printed[timed].startswith("104,096 samples in 102 steps, ")


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("*/*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target
