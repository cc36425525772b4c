"""A step whose ranks a layout lays out: what its file says stands for keys of the step."""

from typing import Any, NamedTuple

from balancer.described import as_dict
from balancer.errors import InputError
from balancer.layouts.layout import StepLayout
from balancer.problem.cuts.pipelines import Pipelines
from balancer.step import StepFile
from solvers.errors import ArgumentError, UsageError, WordedError, braced


class LaidOut(NamedTuple):
    """What a layout makes of a step."""

    step: StepFile
    layout: StepLayout | None  # where ranks are its GPUs; else they are its replicas
    cut: Pipelines | None  # where encoders run in gaps: micro-batches that no keys say


def check_beside(step: StepFile) -> None:
    """Raise UsageError for what a step says beside a layout that stands for it."""
    if step.cut is None:
        return
    said = {"pipelines": "cut.stages", "sequence_groups": "cut.degrees"}.get(step.cut.kind)
    if step.cut.kind == "micro_batches" and step.cut.pipeline_stages is not None:
        said = "cut.pipeline_stages"
    if said:
        raise UsageError(f"{said} cannot be combined with {{layouts}}")


def laid_out(step: StepFile, layout: StepLayout, path: str = "layout") -> LaidOut:
    """Return the step with the keys that a layout stands for; errors call it by its path.

    Raises
    ------
    UsageError, ArgumentError
        A layout of other phases, or for other numbers of ranks; what a step says in another way.
    """
    check_beside(step)
    layout.check_phases(step.names)
    where, num_ranks = braced(path), step.need("ranks")
    if layout.mode == "multiplexed" and layout.encoders:
        return LaidOut(step, None, _in_gaps(step, layout, path, num_ranks))
    if layout.generators:
        raise UsageError(
            f"{where}: a plan does not say what generators do ({', '.join(layout.generators)})",
            "see it with simulate --layout",
        )
    is_first = layout.mode == "before" or not layout.encoders
    of_gpus = is_first and num_ranks == layout.num_gpus != layout.llm.dp
    if not of_gpus and layout.llm.dp != num_ranks:
        gpus = f", or {layout.num_gpus}, its GPUs" * is_first
        raise ArgumentError("ranks", f"be {layout.llm.dp}, the replicas of {where}{gpus}", num_ranks)
    cut = _taken(step, layout)
    if not of_gpus or layout.num_stages > 1:
        cut |= {"kind": "pipelines", "stages": layout.stage_counts, **layout.pipeline_keywords()}
        if layout.encoders:
            when = "step" if layout.mode == "before" else "slot"
            if (given := cut.get("encoders", when)) != when:
                raise UsageError(
                    "{cut.encoders} {given} contradicts mode {of_file!r} of {path}, which says when they compute",
                    given=given, of_file=layout.mode, path=path,
                )  # fmt: skip
            if when == "step":
                cut["encoders"] = when
    try:
        return LaidOut(step.with_cut(cut) if cut else step, layout if of_gpus else None, None)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _taken(step: StepFile, layout: StepLayout) -> dict[str, Any]:
    """Return the keys of the cut, with those that the layout says and the step does not."""
    said = {} if step.cut is None else as_dict(step.cut)
    of_file = {"count": layout.micro_batches, "tokens": layout.micro_batch_tokens}
    return {name: value for name, value in of_file.items() if value is not None} | said


def _in_gaps(step: StepFile, layout: StepLayout, path: str, num_ranks: int) -> Pipelines:
    """Return the micro-batches of a layout whose encoders run in gaps; its file says all of them."""
    where = braced(path)
    if layout.times is None:
        raise UsageError(
            f"{where}: does not say what its modules take, of which what runs in which gap is planned: plan a file "
            "that configure --out writes, or see this one with simulate --layout"
        )
    if layout.llm.dp != num_ranks:
        raise ArgumentError("ranks", f"be {layout.llm.dp}, the replicas of {where}", num_ranks)
    said = [] if step.cut is None else [f"cut.{name}" for name in as_dict(step.cut) if name != "kind"]
    said += [f"{name} of phases" for name in ("cost", "frozen") if step.of_phases(name)]
    if said:
        raise UsageError(f"{', '.join(said)} cannot be combined with {{layouts}} of mode 'multiplexed', which says it")
    try:
        return Pipelines.in_gaps(layout.times)
    except WordedError as error:
        raise error.within(path) from None
