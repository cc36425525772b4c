"""``balancer pack``: samples of a log joined to packs for fine-tuning, and the packs written."""

from collections.abc import Iterator
from typing import Any

from balancer.cli.run import progress, resumable, say, say_json, timed
from balancer.io.log_files import LogPath
from balancer.io.logs import open_log
from balancer.offline.pack_window import PackSettings
from balancer.offline.packs import PackTotals, pack_run
from balancer.report.text import counted
from solvers import pack


def run(
    log: LogPath, length: str | None, out: str | None, overwrite: bool, resume: bool, as_json: bool, **options: Any
) -> None:
    """Pack, and write the packs if that is wanted."""
    settings = PackSettings(**options)
    opened = open_log(log)
    pack([6, 5, 4, 3, 3, 3], 12)  # so that kernels are ready before packing is timed
    with timed() as seconds, progress(as_json) as tick, resumable(out):
        totals = pack_run(opened, length, settings, out, resume=resume, overwrite=overwrite, tick=tick)
    if as_json:
        say_json(totals.summary() | {"settings": settings.to_json(), "runtime_s": seconds[0]})
        return
    say(f"{opened.path.name}: packs of {settings.tokens:,} tokens", *_told(totals, settings, seconds[0]))
    if out is not None:
        say(
            f"packs written to {out}",
            "to train on them, instead of the tokenized data set:",
            "  from balancer import PackedDataset",
            f"  packed = PackedDataset(dataset, {out!r})",
        )


def _told(totals: PackTotals, settings: PackSettings, seconds: float) -> Iterator[str]:
    """Say what a run found, a line each."""
    found = totals.summary()
    short = totals.packs - totals.lower_bound
    proof = f"at least {totals.lower_bound:,} are needed: at most {found['gap']:.3%} more" if short else (
        "no fewer are possible"
    )  # fmt: skip
    yield f"  {counted(totals.packs, 'pack')} of {counted(totals.tokens, 'token')}; {proof}"
    yield f"  {found['waste']:.3%} of what they could hold is empty"
    yield f"  the most costly pack: {found['cost_max_over_mean']:.3f} times the mean ({settings.model})"
    if settings.per_step is not None:
        wait = f"; ranks wait {found['step_idle']:.3%} of the time" if found["step_idle"] is not None else ""
        less = f", {counted(totals.short_steps, 'step')} of fewer" * bool(totals.short_steps)
        yield f"  {counted(totals.steps, 'step')} of {counted(settings.per_step, 'pack')}{less}{wait}"
    if totals.over_long:
        what = {"own": "in packs of their own", "drop": f"left out, {counted(totals.dropped_tokens, 'token')}",
                "cut": "cut"}[settings.over_long]  # fmt: skip
        yield f"  {counted(totals.over_long, 'row')} over {settings.tokens:,} tokens: {what}"
    if totals.empty:
        yield f"  {counted(totals.empty, 'empty row')} in no pack"
    yield f"  {counted(totals.rows, 'row')} in {seconds:.2f} s, {counted(totals.windows, 'window')}"
