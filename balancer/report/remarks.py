"""What is said of a run in sentences, on a screen and on a page: what caps it, what was not done, how to train by."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from balancer.errors import on_a_line
from balancer.offline.step_table import allowed_gap, full_steps, phases_in, summary, total
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.table import as_percent
from balancer.report.text import counted, of_phase, shortened

Numbers = Mapping[str, Any]
"""What a run, or a phase of it, adds up to, by the names of ``--json``: see ``balancer.offline.step_table``."""


def remarks_of(steps: pa.Table) -> Iterator[str]:
    """Yield all that must be said beside the numbers of a run."""
    found, judged = summary(steps), phases_in(full_steps(steps))
    if meets_in_slots(found):
        yield _before_slots(found)
    yield from warnings_of(steps)
    for name, phase in found["phases"].items():
        rows = judged[name]
        if phase["capped_steps"]:
            yield of_phase(name, _what_caps(phase, rows))
        if "copies_of_a_prompt" in phase:
            where = "in {:.2f} micro-batches" if "sync" in phase else "on {:.2f} ranks"
            copies = where.format(phase["copies_of_a_prompt"])
            yield of_phase(name, f"a prompt is computed {copies} on average.")
        if "groups_of_degree" in phase:
            yield of_phase(name, _groups_of(phase, len(rows)))
        if pc.any(rows["loss_assumed"]).as_py():
            yield of_phase(
                name,
                "ranks that share a sample are assumed to lose 5 % of their speed with each doubling of their number; "
                "--cost says what was measured (balancer fit), or flexsp-7b-a100.",
            )
        if phase["fell_back"]:
            yield of_phase(name, why_not_relocated(phase, len(rows)))
    if "across_steps" in found:
        yield from _of_deferral(found["across_steps"])


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


def how_many(found: Numbers) -> str:
    """Say how many samples and steps there are."""
    return f"{counted(found['samples'], 'sample')} in {counted(found['steps'], 'step')}"


def costs_of(found: Numbers) -> dict[str, str]:
    """Say what each phase is priced by, and whose FLOPs that is, where it is known."""
    models = found.get("models", {})
    return {name: f"{cost} of {models[name]}" if name in models else cost for name, cost in found["cost"].items()}


def meets_in_slots(found: Numbers) -> bool:
    """Whether ranks of some phase meet in every micro-batch or along a pipeline."""
    return any(phase.get("sync") not in (None, "step") for phase in found["phases"].values())


def in_pipeline(found: Numbers) -> bool:
    """Whether the last phase is planned for pipeline stages."""
    return any("pipeline_stages" in phase for phase in found["phases"].values())


def _before_slots(found: Numbers) -> str:
    """Say what is compared with, where there are micro-batches."""
    if not in_pipeline(found):
        return "Before: as the samples lie, not cut into micro-batches; ranks wait once a step."
    stages = "Before: each rank's samples as they lie, cut into as many micro-batches of equally many"
    if any("in_pipeline" in phase for phase in found["phases"].values()):
        return f"{stages}; encoders that the plan has in gaps run before them, evenly on all devices."
    return f"{stages}."


def _what_caps(phase: Numbers, rows: pa.Table) -> str:
    worst, holder = phase["capping_sample"], rows["holder"][0].as_py()
    steps = f"{phase['capped_steps']:,} of {counted(len(rows), 'step')}"
    which = f"row {worst['row']:,} (from 0), length {worst['length']:,}, in step {worst['step']:,}"
    mended = "no plan of whole samples mends that" if holder == "rank" else "replicas of more ranks mend that"
    return (
        f"in {steps} one sample alone costs more than a {holder}'s fair share; {mended}. "
        f"The worst: {which}; its {holder} takes {worst['imbalance_ratio_best_possible']:.2f} times the mean."
    )


def why_not_relocated(phase: Numbers, steps: int) -> str:
    """Say which of so many steps were rearranged instead of relocated."""
    reasons = [(on_a_line(reason), count) for reason, count in phase["fell_back"].items()]
    why = " ".join(f"{counted(count, 'step')}: {reason}." for reason, count in reasons)
    if len(reasons) == 1:
        why = f"{reasons[0][0][:1].upper()}{reasons[0][0][1:]}."
    what = "balanced first and laid on nodes afterwards, which moves more."
    fell = f"in {sum(phase['fell_back'].values()):,} of {counted(steps, 'step')}"
    return f"{fell} samples were {what} {why}"


def _groups_of(phase: Numbers, steps: int) -> str:
    """Say how many groups of ranks of each degree there are, over all slots and steps, and what `eps` is not of."""
    counts = ", ".join(f"{count:,} of {degree}" for degree, count in phase["groups_of_degree"].items())
    told = f"groups of ranks in all slots and steps: {counts}."
    over = steps - phase["steps_within_eps"]
    if "shared_items" in phase and phase["eps"] and phase["placement"] == "relocate" and over:
        allowed = as_percent(allowed_gap(phase["eps"], phase["stop_at"]))
        told += (
            f" In {over:,} of {counted(steps, 'step')} ranks take over {allowed} "
            "more than the bound: eps is of the rank-time of groups, within which ranks are less even."
        )
    return told


def _of_deferral(across: Numbers) -> Iterator[str]:
    """Say what runs early or late, what that can gain, and what it does to training."""
    without, chosen, best = (across[f"imbalance_ratio_{name}"] for name in ("without", "of_steps", "best_possible"))
    if not across["moved"]:
        yield (
            f"across steps: no sample moved; steps take at least {without:.3f} of the even share, and {best:.3f} "
            "whatever is moved within the limits (proven)."
        )
        return
    yield (
        f"across steps: {100 * across['moved']:.0f} % of the samples run in another step than the one they were drawn "
        f"for, {across['mean_displacement']:.2f} steps away on average over all samples, "
        f"{across['largest_displacement']} at most."
    )
    yield (
        f"without deferral steps take at least {without:.3f} of the even share, these steps {chosen:.3f}, any within "
        f"the limits {best:.3f} (proven)."
    )
    before, after = (100 * share for share in across["long_share"])
    yield (
        f"to training: long samples, of {across['long_from']:,} and more, have {before:.0f} % of a step's tokens "
        f"before and {after:.0f} % after, on average. Their tokens weigh {across['sample_mean_weight']:.2f} of what "
        "they did where a step's loss is divided by its samples, and exactly 1 where by a constant. Clipping and "
        "Adam's moments see the gathering in any case."
    )
