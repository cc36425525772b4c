"""What the first page shows is what comes out; and the links in the docs lead somewhere."""

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from balancer.cli.main import cli
from balancer.described import keys_of
from balancer.step import StepFile

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted({page.resolve() for found in ("*.md", "*/*.md", "docs/*/*.md") for page in ROOT.glob(found)})


def test_the_report_that_the_first_page_shows(command, monkeypatch):
    page = (ROOT / "docs" / "start" / "first_plan.md").read_text()
    shown = re.search(r"--out out/plan.parquet\n\n(.*?)\n```", page, re.DOTALL)[1].splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    arguments = "--ranks 64 --ranks-per-node 8 --batch-per-rank 16 --length text_tokens+image_tokens+audio_tokens"
    printed = command("plan", ROOT / "data" / "omni_mix_dev.parquet", *arguments.split()).out.splitlines()
    printed = [line.rstrip() for line in printed]
    timed = next(i for i, line in enumerate(shown) if line.startswith("104,096 samples in"))
    assert printed[:timed] == shown[:timed]
    assert printed[timed].startswith("104,096 samples in 102 steps, ")


def test_the_advice_that_the_readme_shows(command):
    shown = re.search(
        r"^\$ (balancer advise .*?)\n\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    _, _, log, *arguments = shown[1].replace("\\\n", " ").split()
    printed = [line.rstrip() for line in command("advise", ROOT / log, *arguments).out.splitlines()]
    assert printed[2 : 2 + len(shown[2].splitlines())] == shown[2].splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"(?:\]\(|src(?:set)?=\")([^)#\"]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings_that_are_there(page):
    for target, anchor in re.findall(r"\]\(([^)#\"]*\.md|)#([^)\"]+)\)", page.read_text()):
        text = (page.parent / target if target else page).read_text()
        headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
        assert anchor in [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings], target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_a_page_shows_have_options_and_keys_that_there_are(page):
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        shown = re.findall(r"^(?:\$ )?(balancer \w.*)", block.replace("\\\n", " "), re.MULTILINE)
        for _, name, *words in (shlex.split(line, comments=True) for line in shown):
            command = cli.commands[name]
            said = command.make_parser(click.Context(command)).parse_args(words)[0].get("keys", [])
            keys = {re.sub(r"^phase\.[^.]+\.", "phase.NAME.", key.partition("=")[0]) for key in said}
            assert keys <= {each.path for each in keys_of(StepFile)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts_that_a_page_names_are_there(page):
    of_old = page.name == "CHANGELOG.md"  # it names those of its time
    for script in [] if of_old else re.findall(r"python (benchmarks/\w+\.py)", page.read_text()):
        assert (ROOT / script).exists(), script


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) < 800


@pytest.mark.parametrize("source", [None, "https://host/seqbalancer"])
def test_the_readme_can_be_read_on_an_index(source):
    readme = (ROOT / "README.md").read_text()
    shown = runpy.run_path(str(ROOT / "setup.py"))["for_an_index"](readme, source, "1.2.3")
    links = re.findall(r"(?:\]\(|src(?:set)?=\")([^)#\"]+)", shown)
    assert all(link.startswith("https://") for link in links)
    if source is None:
        assert "<picture>" not in shown
        assert "](" not in shown
        assert "peers.py" in shown
    else:
        assert f"{source}/blob/v1.2.3/benchmarks/peers.py" in links
        assert f"{source}/raw/v1.2.3/docs/pictures/step-light.svg" in links
