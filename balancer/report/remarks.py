"""What must be said beside the numbers of a run: of which steps they are not, and how to train by the plan."""

from collections.abc import Iterator

from balancer.problem.phases import SINGLE_PHASE
from balancer.report.summary import RunSummary
from balancer.report.text import counted, of_phase, shortened


def warnings_of(summary: RunSummary) -> Iterator[str]:
    """Yield a sentence for each thing that a reader of the numbers would take for something else."""
    if summary.short_steps and summary.short_steps == summary.steps:
        samples = counted(summary.samples, "sample")
        yield (
            f"The log holds fewer samples than one global batch ({samples}): ranks without a sample wait whatever is "
            "planned, so these numbers say nothing of full steps."
        )
    elif summary.short_steps:
        what = "The last step is" if summary.short_steps == 1 else f"{summary.short_steps:,} last steps of epochs are"
        each = ", ".join(
            f"{shortened(name, 40)} {phase.ratio_before:.3f} before, {phase.ratio_after:.3f} after".removeprefix(
                f"{SINGLE_PHASE} "
            )
            for name, phase in summary.short.items()
            if not phase.follows
        )
        yield (
            f"{what} short, with {counted(summary.short_samples, 'sample')}, and not in these numbers "
            f"(imbalance ratio: {each})."
        )
    for name, phase in summary.phases.items():
        if not phase.worked_after:
            yield of_phase(
                name, "all lengths are 0, so there is nothing to balance; are these the columns that you mean?"
            )


def to_train(plan: str, shares: bool) -> Iterator[tuple[str, str]]:
    """Yield what for and the lines that train by a plan file, in which ranks may share samples."""
    lines = (
        "from balancer.compat import PlannedBatchSampler",
        f"loader = DataLoader(dataset, batch_sampler=PlannedBatchSampler({plan!r}, rank))",
    )
    yield "to train by it, instead of the loader's own sampler", "\n".join(lines)
    if shares:
        pieces = f"balancer.load_plan({plan!r}, step=0).pieces_on_rank(rank, slot=0)"
        yield "ranks share samples; the elements of each rank", pieces
