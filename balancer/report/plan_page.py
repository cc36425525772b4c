"""The page of a plan: what it changes, where ranks wait, what still caps it, and what to do with it."""

import shlex
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from balancer.cuts.pipelines.plan import PipelinePlan
from balancer.offline.step_table import full_steps, phases_in, ratio_columns, summary, total, worst
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.gaps import Between
from balancer.plan.step_plan import StepPlan
from balancer.problem.constraints import CONSTRAINTS
from balancer.report import charts
from balancer.report.page import Card, Chart, Page, Section, html, named
from balancer.report.plan_table import WHEN, tables_of
from balancer.report.remarks import Numbers, how_many, in_pipeline, meets_in_slots, remarks_of, to_train
from balancer.report.table import Table, as_percent, as_ratios
from balancer.report.text import counted, folded, of_phase, shortened

__all__ = ["Drawn", "pipeline_chart", "plan_page"]

_MOST_IN_LEAD = 3
_MOST_DRAWN = 3  # phases that have charts, the first: a page shall stay small
_EVEN = 1.001  # imbalance ratio up to which a step is no bad one
_WORTH = 0.01  # share of the time that must be waiting under any plan, for another remedy to be named
_BINS_AN_OCTAVE = 4

_LONGEST_REQUEST = 1000  # characters that are shown of what was asked for


class Drawn:
    """What a page draws beside the table of steps: the plan of one step, and how long items are.

    Parameters
    ----------
    steps : pyarrow.Table
        The table of all steps: that of the median saving is drawn.
    """

    def __init__(self, steps: pa.Table) -> None:
        self.step = _median_step(steps)
        self.plan: StepPlan | None = None
        # By phase, items by length: bin b has lengths from 2**(b / 4); those of length 0 are left out
        self.lengths: dict[str, NDArray[np.int64]] = {}
        self._seen = 0

    def add(self, plan: StepPlan) -> None:
        """Take in the next step's plan."""
        if self._seen == self.step:
            self.plan = plan
        self._seen += 1
        for name, phase in plan.phases.items():
            there = phase.plan.lengths[phase.plan.lengths > 0]
            # 1e-9, or a power of two could fall into the bin below by rounding.
            bins = np.floor(_BINS_AN_OCTAVE * np.log2(there) + 1e-9).astype(np.int64)
            counts = np.bincount(bins, minlength=64 * _BINS_AN_OCTAVE)
            self.lengths[name] = self.lengths.get(name, 0) + counts


def _median_step(steps: pa.Table) -> int:
    """Return the step whose plan saves what the median one does: the sum over phases of what their ratios fall."""
    saved: dict[int, float] = {}
    judged = full_steps(steps)
    for rows in phases_in(judged.filter(pc.invert(pc.fill_null(judged["in_pipeline"], False)))).values():
        before, after, _ = ratio_columns(rows)
        for step, gain in zip(rows["step"].to_pylist(), before - after, strict=True):
            saved[step] = saved.get(step, 0.0) + float(gain)
    return sorted(saved, key=lambda step: (saved[step], step))[(len(saved) - 1) // 2]


def plan_page(steps: pa.Table, drawn: Drawn, title: str, plan: str = "", log: str = "") -> Page:
    """Return the page of a run, from its table of steps and what was drawn of the same steps, at least one.

    `title` says of what, `plan` and `log` are the files to go on with.
    """
    found, judged = summary(steps), phases_in(full_steps(steps))
    cards = [_card(name, phase) for name, phase in found["phases"].items()]
    said = f"{how_many(found)}."
    if drawn.plan is not None:
        ranks, nodes = drawn.plan.num_ranks, drawn.plan.topology.num_nodes
        said = f"{how_many(found)}, {counted(ranks, 'rank')}{f' on {nodes:,} nodes' * (nodes > 1)}."
    about = " ".join((said, *remarks_of(steps)))
    sections = list(_sections(steps, drawn, plan or "plan.parquet", log or "LOG"))
    return Page(title, _lead(found, judged), about, cards, sections)


# In short ----------------------------------------------------------------------------------------------------------


def _own_phases(found: Numbers) -> dict[str, Numbers]:
    """Return the phases that have a makespan of their own: not the stages of another one's pipeline."""
    return {name: phase for name, phase in found["phases"].items() if "in_pipeline" not in phase}


def _lead(found: Numbers, judged: Mapping[str, pa.Table]) -> str:
    """Return what a plan is worth in one sentence, and what it assumes."""
    phases, last = _own_phases(found), [*judged.values()][-1]
    if before := total(last["joint_before"]):
        saved = as_percent(max(0.0, 1 - total(last["joint_after"]) / before))
        unit = "with costs in one unit for all phases"
        return html("This plan makes a step take <strong>{} less time</strong>, {}.", saved, unit)
    if len(phases) > 1:
        return _lead_of_phases(phases)
    phase = next(iter(phases.values()))
    saved = 1 - phase["imbalance_ratio_after"] / phase["imbalance_ratio_before"]
    who = "stages" if "pipeline_stages" in phase else "ranks"
    waited, left, least = (as_percent(phase[f"waiting_{when}"]) for when in WHEN)
    proof = f"under any plan at least {least}, proven; the mean gap to that bound is {as_percent(phase['gap_mean'])}"
    if saved < 0.0005:
        return f"This plan saves no time: {who} wait {left} of theirs, as before ({proof})."
    return html("This plan makes a step take <strong>{} less time</strong>: {} wait {} of theirs instead of {} ({}).",
                as_percent(saved), who, left, waited, proof)  # fmt: skip


def _lead_of_phases(phases: Mapping[str, Numbers]) -> str:
    """Return what a plan is worth in every phase, where costs of phases cannot be added up."""
    gained = {name: of["imbalance_ratio_after"] / of["imbalance_ratio_before"] for name, of in phases.items()}
    each = html(", ").join(
        html("in {} {} instead of {}", named(name, 40), *(as_percent(of[f"waiting_{x}"]) for x in ("after", "before")))
        for name, of in sorted(phases.items(), key=lambda found: gained[found[0]])[:_MOST_IN_LEAD]
    )
    return html("With this plan ranks wait {} of the phase's time. What a step saves depends on how long each phase "
                "takes: <code>balancer simulate</code> prices it.", each)  # fmt: skip


def _card(name: str, phase: Numbers) -> Card:
    """Return the card of one phase: what waiting costs before and after."""
    if "in_pipeline" in phase:
        before, after = as_ratios(phase[f"imbalance_ratio_{when}"] for when in WHEN[:2])
        words = "imbalance ratio before and after, in the pipeline with the last phase"
        return Card(named(name), f"{before} → {after}", words)
    before, after, bound = (as_percent(phase[f"waiting_{when}"]) for when in WHEN)
    what = "of all stages' time is bubble" if "pipeline_stages" in phase else "of rank-time is waiting"
    return Card(named(name), f"{before} → {after}", f"{what}, before and after; at least {bound} under any plan")


# Sections ----------------------------------------------------------------------------------------------------------


def _sections(steps: pa.Table, drawn: Drawn, plan: str, log: str) -> Iterator[Section]:
    found, judged = summary(steps), phases_in(full_steps(steps))
    own = {name: judged[name] for name in _own_phases(found)}
    shown = dict([*own.items()][:_MOST_DRAWN])
    phases, *traffic = tables_of(steps)
    yield Section("In numbers", table=phases)
    for table in traffic:
        yield Section("What moves", table=table)
    if drawn.plan is not None:
        last = drawn.plan.last
        yield _of_pipeline(drawn.step, last) if isinstance(last, PipelinePlan) else _of_ranks(drawn, found, [*shown])
    words = f"Imbalance ratio of each step: {_what_is_uneven(found)}. Between plan and proven bound lies the gap."
    yield Section("Step by step", words, [_by_step(name, rows) for name, rows in shown.items()])
    yield _worst(own)
    words = "Items by length, on a logarithmic axis. The longest set what no plan can mend."
    drawn_lengths = [_lengths(name, counts) for name, counts in [*drawn.lengths.items()][:_MOST_DRAWN]]
    yield Section("How long items are", words, drawn_lengths)
    yield _asked_and_assumed(found, drawn)
    yield _what_now(found, plan, log)


def _of_ranks(drawn: Drawn, found: Numbers, phases: list[str]) -> Section:
    """Return one step by rank."""
    assert drawn.plan is not None
    words = (
        f"Load of each rank over the mean in step {drawn.step:,}, the median one by what the plan saves. All wait for "
        "the busiest; dotted, proven: no plan has it lower."
    )
    if meets_in_slots(found):
        words += " Where ranks wait in micro-batches, they wait for more than these sums show."
    return Section("Where ranks wait", words, [_loads(name, drawn.plan[name]) for name in phases])


def _loads(name: str, plan: DispatchPlan) -> Chart:
    """Return the loads of a step's ranks, before and after; of time, where ranks have speeds."""
    speeds = plan.constraints.rank_speeds
    weights = np.ones(plan.num_ranks) if speeds is None else np.asarray(speeds, dtype=np.float64)
    even, share = plan.perfect()
    mean = even / share
    before, after = (each / weights / mean if mean else np.ones(len(each)) for each in (plan.home_loads, plan.loads))
    bound = plan.lower_bound / mean if mean else 1.0
    draw = partial(charts.loads, before=before, after=after, bound=bound, ylabel="load / mean load")
    busiest = f"the busiest {before.max():.2f} as sampled, {after.max():.2f} planned, proven at least {bound:.2f}"
    return Chart(of_phase(name, f"load of ranks over the mean: {busiest}"), draw, named(name))


def _of_pipeline(step: int, plan: PipelinePlan) -> Section:
    """Return the slowest pipeline of one step, before and after."""
    runs, between = {}, {}
    for name, home in (("as sampled", True), ("planned", False)):
        slowest = int(np.argmax(plan.pipeline_makespans(home)))
        runs[name] = plan.pipeline_run(slowest, home)
        if (tasks := plan.between(slowest, home)) is not None:
            between[name] = tasks
    even, share = plan.perfect()
    unit = even / share or 1.0, "time, in which the mean replica would take 1 without bubbles"
    ahead = " Before, encoders run ahead of the pipeline, evenly on all devices." * bool(between)
    words = (
        f"Stages of the replica that takes longest in step {step:,}, the median one by what the plan saves. What is "
        f"blank is bubble.{ahead} Small micro-batches first and last fill and drain a pipeline fast."
    )
    return Section("Where stages wait", words, [pipeline_chart(runs, unit, between)])


def pipeline_chart(runs: charts.Runs, unit: tuple[float, str], between: Mapping[str, Between]) -> Chart:
    """Return the stages of a pipeline over time, a panel a run, by names that no user chose.

    `unit` is what times are divided by, and what they then are; `between` is what runs in the gaps of a run.
    """
    devices = max(len(run.busy) for run in runs.values())
    ends = ", ".join(f"{name} {run.makespan / unit[0]:.4g}" for name, run in runs.items())
    draw = partial(charts.gantt, runs=runs, unit=unit, between=between)
    height = 0.7 + len(runs) * (0.5 + charts.DEVICE_HEIGHT * devices)
    says = f"Timeline of the stages of one pipeline, which ends at: {ends}"
    return Chart(says, draw, height=height, width=9.5, broad=True)


def _what_is_uneven(found: Numbers) -> str:
    """Say what an imbalance ratio is of."""
    if not meets_in_slots(found):
        return "largest load over mean load"
    if in_pipeline(found):
        return "what the longest pipeline takes, over what the mean one would without bubbles"
    return "what it takes, as ranks wait with micro-batches, over what it would if all of them were even"


def _by_step(name: str, rows: pa.Table) -> Chart:
    """Return the imbalance ratio of every step."""
    before, after, bound = ratio_columns(rows)
    lines = {"as sampled": before, "planned": after, "proven bound": bound}
    says = f"imbalance ratio of each step: at most {before.max():.2f} as sampled, {after.max():.2f} planned"
    return Chart(of_phase(name, says), partial(charts.over_steps, lines=lines, ylabel="imbalance ratio"), named(name))


def _worst(phases: Mapping[str, pa.Table]) -> Section:
    """Return the table of the most uneven steps and what caps them; of those that are even enough none."""
    found = worst(pa.concat_tables(phases.values()))
    if not (uneven := [each for each in found if each["after"] > _EVEN]):
        return Section("The worst steps", f"By imbalance ratio: none over {_EVEN}.")
    ratios = zip(*(as_ratios(each[when] for each in uneven) for when in WHEN), strict=True)
    rows = [
        (named(each["phase"]), f"{each['step']:,}", *of,
         *("—" if each[what] is None else f"{each[what]:,}" for what in ("cap_row", "cap_length")))
        for each, of in zip(uneven, ratios, strict=True)
    ]  # fmt: skip
    words = (
        "The steps whose plans are the most uneven: imbalance ratio before, after, and proven to be the best possible. "
        "Where one sample costs more than a rank's fair share, its rank is the slowest whatever is planned; its row in "
        "the log, from 0, says which."
    )
    columns = ("phase", "step", "before", "after", "best possible", "capped by row", "length")
    return Section("The worst steps", words, table=Table(columns, rows))


def _lengths(name: str, all_counts: NDArray[np.int64]) -> Chart:
    """Return how many items have which length."""
    there = np.flatnonzero(all_counts)
    bins = np.arange(there[0], there[-1] + 2) if len(there) else there
    counts, edges = all_counts[bins[:-1]], 2.0 ** (bins / _BINS_AN_OCTAVE)
    says = of_phase(name, f"number of items by length, {int(counts.sum()):,} together")
    return Chart(says, partial(charts.histogram, counts=counts, edges=edges), named(name))


def asked_for(plan: DispatchPlan, encoder_slots: str = "") -> str:
    """Say what a plan was asked to do: cost, placement, constraints and micro-batches.

    An encoder's micro-batches have no cap of their own; `encoder_slots` says where it computes.
    """
    kept = plan.constraints
    said = [f"cost {plan.cost.in_words}"]
    said.append(f"{plan.placement} within {plan.eps:g}" if plan.placement == "relocate" else plan.placement)
    numbers = [name for name in kept.names() if CONSTRAINTS[name].value == "number"]
    said += [f"{name} {getattr(kept, name):,}" for name in numbers]
    said += [f"{cap.name} at most {cap.limit:,}" for cap in kept.caps]
    said += [name for name in kept.names() if CONSTRAINTS[name].value not in ("number", "caps")]
    said += [encoder_slots or plan.cut.in_words()]
    return ", ".join(filter(None, said))


def encoder_slots(plan: StepPlan, phase: str) -> str:
    """Say where an encoder computes if there are micro-batches; nothing of the last phase."""
    if phase == list(plan.phases)[-1] or not plan[phase].cut.meets:
        return ""
    if plan.encoders_in_pipeline:
        return f"{'in the gaps' if plan.setup.in_gaps else 'stages'} of the last phase's pipeline"
    return "before the first micro-batch" if plan.encoders_first else "in the micro-batches of the samples"


def _asked_and_assumed(found: Numbers, drawn: Drawn) -> Section:
    """Return what plans were to do, and what is taken for granted."""
    rows, plan = [], drawn.plan
    if plan is not None:
        for name, phase in plan.phases.items():
            words = asked_for(phase.plan, encoder_slots(plan, name))
            rows.append((shortened(name, 40), named(words, _LONGEST_REQUEST)))
    short = found.get("short_steps", {}).get("steps", 0)
    words = html(
        "Waiting and time follow from costs alone: a rank's time is proportional to the cost of what it holds, the "
        "same on all ranks; phases come one after the other, and each ends when its slowest rank does; the exchange of "
        "samples takes no time. Ratios are of rank-time, so a long step counts for more than a short one{}. "
        "<code>balancer simulate</code> prices steps on a cluster. What was asked of each phase:",
        f"; {counted(short, 'short step')} apart" if short else "",
    )
    return Section("What was asked for, and assumed", words, table=Table((), rows) if rows else None)


def _what_now(found: Numbers, plan: str, log: str) -> Section:
    """Return what to go on with: to train by the plan, to see what it gained, and to wait less still."""
    shares = any("shared_items" in phase for phase in found["phases"].values())
    pasted = list(to_train(plan, shares, list(found["phases"])))
    measured = folded(shlex.join(["balancer", "report", plan, "--measured", "times.csv"]))
    pasted.append(("to set what ranks then took (columns step, rank, seconds) beside what it predicts", measured))
    if any(phase["waiting_best_possible"] > _WORTH for phase in _own_phases(found).values()):
        what = "to see what helps where a plan within the step cannot; the dots are options, as the plan was made by"
        pasted.append((what, f"{shlex.join(['balancer', 'advise', log])} ..."))
    return Section("What now", pasted=[(f"{what[:1].upper()}{what[1:]}:", lines) for what, lines in pasted])
