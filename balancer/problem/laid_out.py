"""A step whose ranks a layout lays out: what its file says stands for keys of the step."""

from typing import NamedTuple

from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.layout import StepLayout
from balancer.problem.step_tables import StepTables, named_options
from solvers.errors import ArgumentError, UsageError, braced

_SAID = {"stages": ("counts", "chunks", "recompute"), "sequence_groups": ("degrees",),
         "micro_batches": ("pipeline_stages",)}  # fmt: skip
"""Keys for which every layout stands."""

_TAKEN = {"micro_batches": "count", "micro_batch_tokens": "tokens"}
"""Fields of a layout that are keys of micro-batches, unless the step says them itself."""


class LaidOut(NamedTuple):
    """What a layout makes of a step."""

    step: StepTables
    layout: StepLayout | None  # where ranks are its GPUs; else they are its replicas
    cut: MicroBatches | None  # where encoders run in gaps: micro-batches that no keys say


def check_beside(step: StepTables) -> None:
    """Raise UsageError for what a step says beside a layout that stands for it."""
    said = [named_options(table, (key,)) for table, keys in _SAID.items() for key in keys if key in step.of(table)]
    if said:
        raise UsageError(f"{', '.join(said)} cannot be combined with {{layouts}}")


def taken_keys(step: StepTables, layout: StepLayout) -> list[str]:
    """Return the fields of a layout that a step takes, as it does not say them itself."""
    return [name for name, key in _TAKEN.items()
            if getattr(layout, name) is not None and key not in step.of("micro_batches")]  # fmt: skip


def laid_out(step: StepTables, layout: StepLayout, path: str = "layouts") -> LaidOut:
    """Return the step with the keys that a layout stands for; errors call it by its path.

    Raises
    ------
    UsageError, ArgumentError
        A layout of other phases, or for other numbers of ranks; what a step says in another way.
    """
    check_beside(step)
    layout.check_phases(step.names)
    where, (num_ranks,) = braced(path), step.need("ranks")
    if layout.mode == "multiplexed" and layout.encoders:
        return LaidOut(step, None, _in_gaps(step, layout, where, num_ranks))
    if layout.generators:
        raise UsageError(
            f"{where}: a plan does not say what generators do ({', '.join(layout.generators)})",
            "see it with simulate --layout",
        )
    is_first = layout.mode == "before" or not layout.encoders
    of_gpus = is_first and num_ranks == layout.num_gpus != layout.llm.dp
    if not of_gpus and layout.llm.dp != num_ranks:
        gpus = f", or {layout.num_gpus}, its GPUs" * is_first
        raise ArgumentError("num_ranks", f"be {layout.llm.dp}, the replicas of {where}{gpus}", num_ranks)
    taken = {_TAKEN[name]: getattr(layout, name) for name in taken_keys(step, layout)}
    if not of_gpus or layout.num_stages > 1:
        keywords = layout.pipeline_keywords()
        step = step.with_keys("stages", counts=layout.stage_counts, **keywords)
        if layout.encoders:
            when = "step" if layout.mode == "before" else "slot"
            if (given := step.of("micro_batches").get("encoders", when)) != when:
                raise UsageError(
                    "{encoders} {given} contradicts mode {of_file!r} of {path}, which says when they compute",
                    given=given, of_file=layout.mode, path=path,
                )  # fmt: skip
            if when == "step":
                taken["encoders"] = when
    return LaidOut(step.with_keys("micro_batches", **taken) if taken else step, layout if of_gpus else None, None)


def _in_gaps(step: StepTables, layout: StepLayout, where: str, num_ranks: int) -> MicroBatches:
    """Return the micro-batches of a layout whose encoders run in gaps; its file says all of them."""
    if layout.times is None:
        raise UsageError(
            f"{where}: does not say what its modules take, of which what runs in which gap is planned: plan a file "
            "that configure --out writes, or see this one with simulate --layout"
        )
    if layout.llm.dp != num_ranks:
        raise ArgumentError("num_ranks", f"be {layout.llm.dp}, the replicas of {where}", num_ranks)
    said = [named_options(table, step.of(table)) for table in ("micro_batches", "stages") if step.of(table)]
    said += [named_options("phase", (key,)) for key in ("cost", "frozen") if step.of_phases(key)]
    if said:
        raise UsageError(f"{', '.join(said)} cannot be combined with {{layouts}} of mode 'multiplexed', which says it")
    return MicroBatches.in_gaps(layout.times)
