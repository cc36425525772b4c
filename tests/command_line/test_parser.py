"""How words become options: what is given twice; and what help needs."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from typed_words import keys

import balancer
from balancer.cli.main import cli
from balancer.cli.options import SHORT
from balancer.cli.parser import Command
from balancer.described import keys_of
from balancer.layouts.layout import LAYOUT_MODES
from balancer.offline.packed_rows import COST, OVER_LONG
from balancer.problem.cuts.context_shards import ContextShards
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.simulate import WAITS
from balancer.step import StepFile
from balancer.strategies import STRATEGIES

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
        (keys("cut.tokens=9", "cut.tokens=9"), "cut.tokens"),
        ((*keys("cut.tokens=9"), "--set=cut.tokens = 8"), "cut.tokens"),
        (("--ranks", "2", *keys("ranks=2")), "ranks"),
        ((*keys("ranks_per_node=1"), "--ranks-per-node", "2"), "ranks_per_node"),
        (("--length", "a", *keys("phase.all.length=b")), "phase.all.length"),
        (keys("plan.eps=", "plan.eps=0"), "plan.eps"),
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


LIGHT = """
import contextlib, io, json, sys
from balancer.cli.main import main
codes = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(words)
        except SystemExit as ended:
            codes.append(ended.code)
print(json.dumps([codes, [name for name in sys.modules if name.partition(".")[0] in json.loads(sys.argv[2])]]))
"""
HEAVY = ("numba", "numpy", "pyarrow", "pydantic", "pydantic_core", "rich", "scipy", "torch")
HELP = [["--help"], [], ["--version"], *([name, "--help"] for name in cli.commands)]


def test_help_imports_nothing_that_commands_run():
    """Nor do an unknown command and an unknown option."""
    wrong = [["plam", "log.csv"], ["plan", "log.csv", "--rank", "2"]]
    asked = [sys.executable, "-c", LIGHT, json.dumps([*HELP, *wrong]), json.dumps(HEAVY)]
    where = Path(balancer.__file__).parents[1]
    ended = subprocess.run(asked, cwd=where, capture_output=True, text=True, check=True)
    codes = [0] * len(HELP) + [2] * len(wrong)
    assert json.loads(ended.stdout) == [codes, []]


def option(name, word):
    return next(each for each in cli.commands[name].params if word in each.opts)


def test_words_that_help_has_are_those_of_the_library():
    """They stand in the options' own file, so that help imports nothing."""
    assert option("simulate", "--waits").type.choices == WAITS
    assert option("pack", "--cost").default == COST
    of_cuts = (SequenceGroups.strategies, ContextShards.strategies)
    assert option("pack", "--over-long").type.choices == OVER_LONG
    for name, word, known in (
        ("configure", "--mode", [LAYOUT_MODES]),
        ("simulate", "--strategies", [STRATEGIES, *of_cuts]),
    ):
        told = option(name, word).help
        assert all(f" {each}" in told for names in known for each in names), told


def test_every_short_option_sets_a_key():
    known = {each.path.replace("phase.NAME", "phase.all") for each in keys_of(StepFile)}
    assert {path for path, _, _ in SHORT.values()} <= known
