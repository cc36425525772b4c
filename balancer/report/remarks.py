"""What must be said beside the numbers of a run: of which steps they are not, and how to train by the plan."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from balancer.offline.step_table import full_steps, phases_in, summary, total
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.text import counted, of_phase, shortened


def warnings_of(steps: pa.Table) -> Iterator[str]:
    """Yield a sentence for each thing that a reader of the numbers would take for something else."""
    found = summary(steps)
    short = found.get("short_steps")
    if short and short["steps"] == found["steps"]:
        yield (
            f"The log holds fewer samples than one global batch ({counted(found['samples'], 'sample')}): ranks without "
            "a sample wait whatever is planned, so these numbers say nothing of full steps."
        )
    elif short:
        count = short["steps"]
        what = "The last step is" if count == 1 else f"{count:,} last steps of epochs are"
        each = ", ".join(
            f"{shortened(name, 40)} {phase['imbalance_ratio_before']:.3f} before, "
            f"{phase['imbalance_ratio_after']:.3f} after".removeprefix(f"{SINGLE_PHASE} ")
            for name, phase in short["phases"].items()
            if "in_pipeline" not in phase
        )
        yield (
            f"{what} short, with {counted(short['samples'], 'sample')}, and not in these numbers "
            f"(imbalance ratio: {each})."
        )
    for name, rows in phases_in(full_steps(steps)).items():
        if not total(rows["even"]):
            yield of_phase(
                name, "all lengths are 0, so there is nothing to balance; are these the columns that you mean?"
            )


def to_train(plan: str, shares: bool, phases: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what for and the lines that train by a plan file of these phases, in which ranks may share samples."""
    asked = f"{plan!r}, rank" + (f", phase={phases[-1]!r}" if len(phases) > 1 else "")
    lines = (
        "from balancer.compat import PlannedBatchSampler",
        f"loader = DataLoader(dataset, batch_sampler=PlannedBatchSampler({asked}))",
    )
    yield "to train by it, instead of the loader's own sampler", "\n".join(lines)
    if shares:
        pieces = f"balancer.load_plan({plan!r}, step=0).pieces_on_rank(rank, slot=0)"
        yield "ranks share samples; the elements of each rank", pieces
