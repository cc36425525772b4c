"""``balancer solve``: one list of numbers, split into groups."""

import json
import re
import sys

import click

from balancer.cli.options import budget_option, json_option, method_option
from balancer.cli.parser import command
from balancer.errors import InputError
from balancer.problem.topology import MAX_RANKS
from solvers import PARTITIONERS, partition


# Unknown options are let through: else `-5` were one, and not a number to refuse with its place.
@command(
    "solve", short_help="Split one list of numbers into groups.", context_settings={"ignore_unknown_options": True}
)
@click.argument("numbers", nargs=-1)
@click.option("--groups", type=int, required=True, metavar="M", help="Number of groups.")
@method_option(PARTITIONERS)
@click.option("--equal-counts", is_flag=True, help="Equally many numbers in each group, within one.")
@budget_option
@json_option
def solve_command(
    numbers: tuple[str, ...], groups: int, method: str, equal_counts: bool, time_budget: float, as_json: bool
) -> None:
    """Split NUMBERS (or those on standard input) into groups whose largest sum is as small as possible.

    \b
    balancer solve 5 4 3 3 3 --groups 2
    """  # noqa: D301 (click's mark, not an escape)
    text = " ".join(numbers) if numbers and numbers != ("-",) else _standard_input()
    words = text.replace(",", " ").split()
    if not words:
        raise InputError("no numbers to solve: give them as arguments or on standard input")
    # Below, each group is a list: a typing mistake must not fill the memory.
    if groups > MAX_RANKS:
        raise InputError(f"--groups must be <= {MAX_RANKS}, got {groups}")
    costs = [_whole_number(i, word) for i, word in enumerate(words)]
    result = partition(costs, groups, method, time_budget, equal_counts=equal_counts)
    members: list[list[int]] = [[] for _ in range(groups)]
    for cost, group in zip(costs, result.group_of_item.tolist(), strict=True):
        members[group].append(cost)
    if as_json:
        document = {
            "groups": members,
            "group_of_item": result.group_of_item.tolist(),
            "loads": result.loads.tolist(),
            "makespan": result.makespan,
            "lower_bound": result.lower_bound,
            "bound_name": result.bound_name,
            # JSON has no infinity, which is the gap where the bound alone is 0.
            "gap": result.gap if result.lower_bound or not result.makespan else None,
            "status": result.status.value,
            "method": result.method,
            "runtime_s": result.runtime_s,
        }
        click.echo(json.dumps(document, indent=2))
        return
    from rich.console import Console

    from balancer.report.table import print_loads

    console = Console(emoji=False)
    print_loads(console, members, result.loads.tolist())
    proof = "proven optimal" if result.gap == 0 else f"gap {result.gap:.3%}"
    console.print(
        f"makespan {result.makespan:,}, lower bound {result.lower_bound:,} ('{result.bound_name}'): {proof}",
        highlight=False,
    )


def _standard_input() -> str:
    return sys.stdin.read() if sys.stdin is not None else ""


def _whole_number(index: int, word: str) -> int:
    # int() would also read `1_000`, and digits of other scripts.
    if not re.fullmatch(r"[+]?[0-9]{1,19}|-0+", word):
        raise InputError(f"number {index + 1}: {word[:40]!r} must be a whole number >= 0 that fits int64")
    return int(word)
