"""How words become options: what is given twice."""

import click
import pytest

from balancer.cli.main import cli
from balancer.cli.parser import Command

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


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--set", "cut.tokens=9", "--set", "cut.tokens=9"), "cut.tokens"),
        (("--set", "cut.tokens=9", "--set=cut.tokens = 8"), "cut.tokens"),
        (("--ranks", "2", "--set", "ranks=2"), "ranks"),
        (("--set", "ranks_per_node=1", "--ranks-per-node", "2"), "ranks_per_node"),
        (("--length", "a", "--set", "phase.all.length=b"), "phase.all.length"),
        (("--set", "plan.eps=", "--set", "plan.eps=0"), "plan.eps"),
    ],
)
def test_a_key_is_set_once(words, key, command):
    """By whatever option, and before anything is read."""
    outcome = command("plan", "nowhere.csv", *words)
    assert (outcome.code, outcome.err) == (2, f"balancer: {key} is set twice; set each key once\n")


@pytest.mark.parametrize("word", ["", "ranks", "=3", "2"])
def test_a_key_has_a_value(word, command):
    outcome = command("plan", "nowhere.csv", "--set", word)
    assert outcome.code == 2
    assert outcome.err == f"balancer: --set {word}: write KEY=VALUE; balancer step --keys lists the keys\n"
