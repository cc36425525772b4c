"""``balancer pack``: samples of a log joined to packs for fine-tuning, and the packs written."""

from collections.abc import Iterator, Sequence
from typing import Any

from balancer.cli.run import progress, say, say_json, timed
from balancer.io.log_files import LogPath
from balancer.offline.pack_window import PackSettings
from balancer.offline.packs import Packs, pack_log
from balancer.problem.limits import AnyLimit, CountLimit, Limit
from balancer.report.text import counted
from solvers.arguments import as_count
from solvers.errors import UsageError


def run(
    log: LogPath, length: str | None, out: str | None, overwrite: bool, as_json: bool, limits: Sequence[str],
    max_samples: int | None, **options: Any,
) -> None:  # fmt: skip
    """Pack, and write the packs if that is wanted."""
    asked: list[AnyLimit] = [_limit(each) for each in limits]
    if max_samples is not None:
        asked.append(CountLimit(as_count("max_samples", max_samples)))
    settings = PackSettings(**options, limits=asked)
    with timed() as seconds, progress(as_json) as tick:
        packs = pack_log(log, length, settings, out, overwrite, tick)
    if as_json:
        say_json(packs.summary() | {"settings": settings.to_json(), "runtime_s": seconds[0]})
        return
    say(f"packs of {settings.tokens:,} tokens", *_told(packs, settings, seconds[0]))
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


def _told(packs: Packs, settings: PackSettings, seconds: float) -> Iterator[str]:
    """Say what a run found, a line each."""
    found = packs.summary()
    least, over = packs.lower_bound, found["over_long"]
    proof = f"at least {least:,} are needed: at most {found['gap']:.3%} more" if len(packs) > least else (
        "no fewer are possible"
    )  # fmt: skip
    yield f"  {counted(len(packs), 'pack')} of {counted(found['tokens'], 'token')}; {proof}"
    yield f"  {found['waste']:.3%} of what they could hold is empty"
    yield f"  the most costly pack: {found['cost_max_over_mean']:.3f} times the mean ({settings.model})"
    if settings.per_step is not None:
        wait = f"; ranks wait {found['step_idle']:.3%} of the time" if found["step_idle"] is not None else ""
        less = f", {counted(found['short_steps'], 'step')} of fewer" * bool(found["short_steps"])
        yield f"  {counted(found['steps'], 'step')} of {counted(settings.per_step, 'pack')}{less}{wait}"
    if over:
        what = {"own": "in packs of their own", "drop": f"left out, {counted(found['dropped_tokens'], 'token')}",
                "cut": "cut"}[settings.over_long]  # fmt: skip
        limit = f"{settings.tokens:,} tokens" + " or a limit" * bool(settings.limits)
        yield f"  {counted(over, 'row')} over {limit}: {what}"
    if found["empty"]:
        yield f"  {counted(found['empty'], 'empty row')} in no pack"
    yield f"  {counted(found['rows'], 'row')} in {seconds:.2f} s, {counted(found['windows'], 'window')}"
