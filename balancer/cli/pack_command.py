"""``balancer pack``: samples of a log joined to packs for fine-tuning, and the packs written."""

from collections.abc import Iterator, Sequence
from typing import Any

from balancer.cli.run import say, say_json, timed
from balancer.io.log_files import LogPath
from balancer.offline.packs import Packs, pack
from balancer.problem.limits import AnyLimit, CountLimit, Limit
from balancer.report.text import counted
from solvers.arguments import as_count
from solvers.errors import UsageError


def run(
    log: LogPath, out: str | None, as_json: bool, limits: Sequence[str], max_samples: int | None, **options: Any
) -> None:
    """Pack, and write the packs if that is wanted."""
    asked: list[AnyLimit] = [_limit(each) for each in limits]
    if max_samples is not None:
        asked.append(CountLimit(as_count("max_samples", max_samples)))
    with timed() as seconds:
        packs = pack(log, limits=asked, out=out, **options)
    if as_json:
        say_json(packs.summary() | {"settings": packs.description["settings"], "runtime_s": seconds[0]})
        return
    say(*_told(packs, seconds[0]))
    if out is not None:
        say(
            f"packs written to {out}",
            "to train on them, instead of the tokenized data set:",
            "  from balancer import PackedDataset",
            f"  packed = PackedDataset(dataset, {out!r})",
        )


def _limit(text: str) -> Limit:
    columns, _, most = text.rpartition("=")
    if not columns or not most.isdecimal():
        raise UsageError("{limits} must be COL[+COL...]=N, such as images=16, got {text!r}", text=text)
    return Limit(columns, int(most))


def _told(packs: Packs, seconds: float) -> Iterator[str]:
    """Say what a run found, a line each."""
    found, asked = packs.summary(), packs.description["settings"]
    yield f"packs of {asked['tokens']:,} tokens"
    yield from (f"  {words}" for words in packs.words())
    yield f"  the most costly pack: {found['cost_max_over_mean']:.3f} times the mean ({asked['cost']})"
    if found["step_idle"] is not None:
        yield f"  ranks wait {found['step_idle']:.3%} of the time, with a pack of a step on each"
    if found["over_long"]:
        what = {"own": "in packs of their own", "drop": f"left out, {counted(found['dropped_tokens'], 'token')}",
                "cut": "cut"}[asked["over_long"]]  # fmt: skip
        limit = f"{asked['tokens']:,} tokens" + " or a limit" * bool(asked["limits"])
        yield f"  {counted(found['over_long'], 'row')} over {limit}: {what}"
    if found["empty"]:
        yield f"  {counted(found['empty'], 'empty row')} in no pack"
    yield f"  {counted(found['rows'], 'row')} in {seconds:.2f} s"
