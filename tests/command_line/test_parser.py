"""How words become options: what is given twice, and flags that may name a phase."""

import click
import pytest

from balancer.cli.main import cli
from balancer.cli.parser import BARE, Command, NamedFlag, command

OPTIONS = [
    (name, option)
    for name, known in cli.commands.items()
    for option in known.params
    if isinstance(option, click.Option) and not option.is_flag
]


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=[f"{name} {option.opts[0]}" for name, option in OPTIONS])
def test_a_value_is_given_once(name, option, command):
    """Every option of every command: either both values count, or it is refused before anything is read."""
    word = option.opts[0]
    outcome = command(name, word, "1", "nowhere.csv", word, "1")
    assert (outcome.code, outcome.out) == (2, "")
    assert (f"{word} " in outcome.err and "is given 2 times; give it once" in outcome.err) != option.multiple


def test_every_command_is_one_of_ours():
    assert all(isinstance(known, Command) for known in cli.commands.values())


def test_given_three_times_in_any_spelling(command):
    outcome = command("plan", "log.csv", "--length", "a", "--length=b", "--length", "a")
    assert outcome.err.splitlines() == [
        "balancer: --length COL[+COL...] is given 3 times; give it once", "try: balancer plan --help",
    ]  # fmt: skip


def test_a_flag_may_be_said_again(command, tmp_path):
    (tmp_path / "log.csv").write_text("tokens\n5\n4\n")
    outcome = command("plan", "log.csv", "--ranks", "2", "--batch-per-rank", "1", "--json", "--json")
    assert (outcome.code, outcome.err) == (0, "")


@command("probe")
@click.argument("logs", nargs=-1)
@click.option("--phase", multiple=True)
@click.option("--even", cls=NamedFlag)
def probe(logs, phase, even):
    click.echo(f"{logs} {even}")


@pytest.mark.parametrize(
    ("words", "logs", "even"),
    [
        ("log --phase v=a", ["log"], []),
        ("log --even --phase v=a", ["log"], [BARE]),
        ("--even log --phase v=a", ["log"], [BARE]),
        ("--even v log --phase v=a", ["log"], ["v"]),
        ("--phase=v=a --even v", [], ["v"]),
        ("--even v", ["v"], [BARE]),
        ("--even=v", [], ["v"]),
        ("--even=v --even", [], ["v", BARE]),
        ("--even --even v --phase v=a", [], [BARE, "v"]),
        ("--phase v=a -- --even v", ["--even", "v"], []),
        ("--phase v=a log --even", ["log"], [BARE]),
        ("--even --phase", None, None),
    ],
)
def test_a_flag_that_may_name_a_phase(words, logs, even):
    context = click.Context(probe)
    if logs is None:
        with pytest.raises(click.BadOptionUsage):
            probe.parse_args(context, words.split())
        return
    probe.parse_args(context, words.split())
    assert (list(context.params["logs"]), list(context.params["even"])) == (logs, even)
