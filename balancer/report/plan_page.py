"""The page of a plan: what it changes, where ranks wait, what still caps it, and what to do with it."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from balancer.cost import parse_cost
from balancer.offline.step_table import full_steps, phases_in, summary, total, waiting
from balancer.plan.gaps import Between
from balancer.report import charts
from balancer.report.charts import mean_steps
from balancer.report.page import Card, Chart, Page, Section, Table, html, named, numbers_of
from balancer.report.page_data import BINS_AN_OCTAVE, PageData, PhaseData, RankLoads, StepPicture, WorstStep
from balancer.report.remarks import to_train, warnings_of
from balancer.report.table import (
    Numbers,
    across_lines,
    as_bytes,
    as_percent,
    as_ratios,
    before_slots,
    how_many,
    in_pipeline,
    meets_in_slots,
    proven_to,
    slots_of,
    why_not_relocated,
    within_eps,
)
from balancer.report.text import counted, folded, of_phase

__all__ = ["pipeline_section", "plan_page"]

_MOST_IN_LEAD = 3
_EVEN = 1.001  # imbalance ratio up to which a step is no bad one
_FEWEST_NODES = 4  # of a heat map
_WORTH = 0.01  # share of the time that must be waiting under any plan, for another remedy to be named

LONGEST_REASONS = 1000
"""Characters that are shown of what was asked for, and of why samples were not relocated."""


def plan_page(steps: pa.Table, data: PageData, source: str, plan: str = "", log: str = "") -> Page:
    """Return the page of a run, from its table of steps and data of the same steps, at least one.

    `source` says of what, `plan` and `log` are the files to go on with.
    """
    found, judged = summary(steps), phases_in(full_steps(steps))
    cards = [_headline(name, phase, len(judged[name])) for name, phase in found["phases"].items()]
    cards += _traffic_headline(found, judged)
    footer = "Every number is recomputed from the plan and its log."
    sections = list(_sections(found, judged, data, plan or "plan.parquet", log or "LOG"))
    return Page(source, "rank balance", _lead(found, judged, data), _about(steps, found, data), cards, sections, footer)


def _lead(found: Numbers, judged: Mapping[str, pa.Table], data: PageData) -> str:
    """Return what a plan is worth in one sentence, and what it assumes."""
    phases = {name: phase for name, phase in found["phases"].items() if "in_pipeline" not in phase}
    joint = [total(judged[[*phases][-1]][name]) for name in ("joint_before", "joint_after")]
    if len(phases) > 1 and not joint[0]:
        return _lead_of_flops(found, judged, data) + _lead_of_phases(phases)
    assumed = "If time is proportional to cost, and what moves costs none, this plan"
    if len(phases) > 1:
        saved = 1 - joint[1] / joint[0]
        assumed = "If time is proportional to cost, in one unit for all phases, and what moves costs none, this plan"
        return html("{} makes a step take <strong>{} less time</strong>.", assumed, as_percent(max(0.0, saved)))
    phase = next(iter(phases.values()))
    saved = 1 - phase["imbalance_ratio_after"] / phase["imbalance_ratio_before"]
    who = "stages" if "pipeline_stages" in phase else "ranks"
    waited, left, least = (as_percent(phase[f"waiting_{when}"]) for when in ("before", "after", "best_possible"))
    proof = "proven to be the least possible" if left == least else f"proven: at least {least} under any plan"
    if saved < 0.0005:
        return f"{assumed} saves no time: {who} wait {left} of theirs, as before ({proof})."
    return html(
        '{} makes a step take <strong>{} less time</strong>: {} wait <span class="after">{}</span> of theirs '
        'instead of <span class="before">{}</span> ({}).', assumed, as_percent(saved), who, left, waited, proof,
    )  # fmt: skip


def _lead_of_flops(found: Numbers, judged: Mapping[str, pa.Table], data: PageData) -> str:
    """Return what a step of all phases saves where models say how many FLOPs a unit of each cost is; else nothing."""
    units = [_flops_of_unit(found["cost"][name], found.get("models", {}).get(name, "")) for name in judged]
    if data.laid_out or not all(units) or any("sync" in phase for phase in found["phases"].values()):
        return html("")
    before, after = (
        sum(unit * total(rows[when]) for unit, rows in zip(units, judged.values(), strict=True))
        for when in ("before", "after")
    )
    saved = max(0.0, 1 - after / before) if before else 0.0
    return html(
        "If time is proportional to FLOPs, phases run one after the other, and what moves costs none, this plan makes "
        "a step take <strong>{} less time</strong>. ",
        as_percent(saved),
    )


def _flops_of_unit(cost: str, model: str) -> int:
    """Return how many FLOPs a unit of a phase's cost is; 0 where no model that is known by name says so."""
    try:
        named_cost = parse_cost(f"flops:{model}")
    except ValueError:
        return 0
    return named_cost.flops_of_unit if model and str(named_cost) == cost else 0


def _lead_of_phases(phases: Mapping[str, Numbers]) -> str:
    """Return what a plan is worth in every phase, where costs of phases cannot be added up."""
    gained = {name: of["imbalance_ratio_after"] / of["imbalance_ratio_before"] for name, of in phases.items()}
    most = sorted(phases.items(), key=lambda found: gained[found[0]])[:_MOST_IN_LEAD]
    shares = [(named(name, 40), phase["waiting_after"], phase["waiting_before"]) for name, phase in most]
    each = html(", ").join(
        html('in {} <span class="after">{}</span> instead of <span class="before">{}</span>', name,
             as_percent(after), as_percent(before))
        for name, after, before in shares
    )  # fmt: skip
    return html(
        "With this plan ranks wait {} of the phase's time, if that is proportional to cost. What a step saves depends "
        "on how long each phase takes: <code>balancer simulate</code> prices it.",
        each,
    )


def _about(steps: pa.Table, found: Numbers, data: PageData) -> str:
    shape = counted(data.num_ranks, "rank") + f" on {data.num_nodes:,} nodes" * (data.num_nodes > 1)
    said = [f"{how_many(found)}, {shape}.", *warnings_of(steps), *across_lines(found)]
    said += [before_slots(found).capitalize()] if meets_in_slots(found) else []
    return " ".join(said)


def _before_and_after(before: str, after: str) -> str:
    return html('<span class="before">{}</span> → <span class="after">{}</span>', before, after)


def _headline(name: str, phase: Numbers, steps: int) -> Card:
    """Return the card of one phase: what waiting costs before and after."""
    before, after, bound = (as_percent(phase[f"waiting_{when}"]) for when in ("before", "after", "best_possible"))
    ratios = as_ratios(phase[f"imbalance_ratio_{when}"] for when in ("before", "after", "best_possible"))
    if "in_pipeline" in phase:
        words = "imbalance ratio before and after, in the pipeline with the last phase"
        return Card(named(name), _before_and_after(*ratios[:2]), words, [("items", f"{phase['items']:,}")])
    rows = {
        "imbalance ratio": f"{ratios[0]} → {ratios[1]}",
        "best possible, proven": ratios[2],
        "gap, mean": as_percent(phase["gap_mean"]),
        "gap, largest": as_percent(phase["gap_largest"]),
        proven_to(phase): f"{phase['steps_proven_within']:,} of {steps:,}",
    }
    if phase["eps"] and phase["placement"] == "relocate":
        rows[within_eps(phase)] = f"{phase['steps_within_eps']:,} of {steps:,}"
    if "sync" in phase:
        rows[f"micro-batches ({phase['sync']})"] = slots_of(phase)
    if "shared_items" in phase:
        shared = as_percent(phase["shared_fraction"])
        rows["items that ranks share"] = f"{phase['shared_items']:,}, {shared} of all elements"
    for degree, count in phase.get("groups_of_degree", {}).items():
        rows[f"groups of {counted(int(degree), 'rank')}"] = f"{count:,}"
    if "pipeline_stages" in phase:
        rows["pipeline stages"] = f"{phase['pipeline_stages']:,}"
    if phase["fell_back"]:
        rows["steps not relocated"] = f"{sum(phase['fell_back'].values()):,} of {steps:,}"
    what = "of all stages' time is bubble" if "pipeline_stages" in phase else "of rank-time is waiting"
    words = f"{what}, before and after; at least {bound} under any plan"
    return Card(named(name), _before_and_after(before, after), words, rows.items())


def _traffic_headline(found: Numbers, judged: Mapping[str, pa.Table]) -> list[Card]:
    """Return the card of what moves, if there are streams or several nodes."""
    rows: list[tuple[str, object]]
    if streams := found.get("streams"):
        a_step = found["steps"]
        rows = [
            (named(name), f"{as_bytes(of['crosses_nodes_bytes'] / a_step)} of {as_bytes(of['bytes'] / a_step)}")
            for name, of in streams.items()
        ]
        if must := [of["must_cross_nodes_bytes"] for of in streams.values() if "must_cross_nodes_bytes" in of]:
            rows.append(("must cross, on these replicas", as_bytes(sum(must) / a_step)))
        crosses = sum(of["crosses_nodes_bytes"] for of in streams.values())
        return [Card("traffic", as_bytes(crosses / a_step), "cross nodes in a step, on average", rows)]
    (phase,), (steps,) = found["phases"].values(), judged.values()
    if steps["must_cross"].null_count == len(steps):  # one node
        return []
    rows = [("moves within nodes", as_percent(phase["moves_within_nodes"]))]
    if phase["must_cross_nodes"]:
        rows.append(("must cross nodes, proven", as_percent(phase["must_cross_nodes"])))
    return [Card("traffic", as_percent(phase["crosses_nodes"]), "of all volume crosses nodes", rows)]


def _sections(
    found: Numbers, judged: Mapping[str, pa.Table], data: PageData, plan: str, log: str
) -> Iterator[Section]:  # fmt: skip
    """Yield the parts below the headline."""
    counted_phases = {name: phase for name, phase in data.phases.items() if name not in data.following}
    yield _where_ranks_wait(found, counted_phases)
    if (picture := data.picture) is not None:
        yield _pipelines(picture, data) if picture.pipelines else _one_step(picture, data)
    yield Section(
        "Step by step",
        f"Imbalance ratio of each step: {_what_is_uneven(found)}. Between plan and proven bound lies the gap.",
        [_by_step(f"steps-{i}", name, phase) for i, (name, phase) in enumerate(counted_phases.items())],
    )
    yield _worst(counted_phases)
    if data.num_nodes >= _FEWEST_NODES:
        yield _between_nodes(data)
    yield Section(
        "How long items are",
        "Items by length, on a logarithmic axis. The longest set what no plan can mend.",
        [_lengths(f"lengths-{i}", name, phase) for i, (name, phase) in enumerate(data.phases.items())],
    )
    yield _asked(found, judged, data)
    yield _assumed(found, data)
    yield _what_now(found, plan, log)


def _pair(phase: PhaseData, both: Sequence[RankLoads], of_stages: bool) -> Iterator[partial[None]]:
    """Yield what draws loads of a phase before, and after, on one scale."""
    most = max(shown.loads[0] for shown in both)
    what, ylabel = ("bubble", "time / mean, no bubbles") if of_stages else ("waiting", "load / mean load")
    for shown, name in zip(both, ("as sampled", "planned"), strict=True):
        busiest = float(shown.loads[0])
        said = f"{as_percent(waiting(busiest))} of all time is {what}"
        said = said if phase.waits_once else f"the most is {busiest:.2f}"
        before = name == "as sampled"
        yield partial(charts.loads, shown=shown, title=f"{name}: {said}", ylabel=ylabel, before=before, most=most)


def _chart_of_pair(key: str, name: str, pair: Iterable[partial[None]], both: Sequence[RankLoads], caption: bool,
                   what: str) -> Chart:  # fmt: skip
    """Return the loads of ranks, before and after."""
    panels = [lambda figure, panel=panel: panel(figure.subplots()) for panel in pair]
    before, after = both
    rank = before.ranks_a_bar * np.arange(len(before.loads)) + 1
    numbers = numbers_of({"from rank": rank.tolist(), "before": before.loads.tolist(), "after": after.loads.tolist()})
    says = of_phase(name, f"{what} over the mean: the busiest {before.loads[0]:.2f} before, {after.loads[0]:.2f} after")
    width = 4.6 if caption else 6.0
    return Chart(key, says, panels, numbers, named(name) if caption else "", height=2.6, width=width)


def _where_ranks_wait(found: Numbers, phases: dict[str, PhaseData]) -> Section:
    """Return the pair of charts that a reader shall see first."""
    words = (
        "Load of each rank over the mean, of all full steps together. All wait for the busiest, at the dashed line; "
        "dotted, proven: no plan has it lower."
    )
    if in_pipeline(found):
        words = (
            "Time of each replica's pipeline over that of the mean one without bubbles, from the longest to the "
            "shortest, of all full steps together. A step lasts as long as the longest."
        )
    elif meets_in_slots(found):
        words += " Where ranks meet in micro-batches, they wait for more than these sums show."
    drawn = []
    for i, (name, phase) in enumerate(phases.items()):
        both = phase.profiles()
        pair = _pair(phase, both, in_pipeline(found))
        drawn.append(_chart_of_pair(f"profile-{i}", name, pair, both, len(phases) > 1, "Load of ranks"))
    return Section("Where ranks wait", words, drawn, hero=True)


def _which(picture: StepPicture, data: PageData) -> str:
    """Say why this step is drawn."""
    nearly = "" if picture.saved == data.median_saved else "nearly "
    return f"{nearly}the median step, by what the plan saves"


def _one_step(picture: StepPicture, data: PageData) -> Section:
    """Return one step by rank."""
    shown = {name: both for name, both in picture.phases.items() if name not in data.following}
    each = max(loads.ranks_a_bar for both in shown.values() for loads in both)
    words = f"This is {_which(picture, data)}."
    if any(loads.cap for both in shown.values() for loads in both):
        words += " Hatched is the one sample that costs more than a rank's fair share: its rank is the slowest " \
                 "whatever is planned."  # fmt: skip
    if each > 1:
        words += f" Each bar stands for {each} ranks, and shows the busiest."
    drawn, what = [], f"Load of ranks in step {picture.step:,}"
    for i, (name, both) in enumerate(shown.items()):
        pair = _pair(data.phases[name], both, of_stages=False)
        drawn.append(_chart_of_pair(f"step-{i}", name, pair, both, len(shown) > 1, what))
    return Section(f"Step {picture.step:,} by rank", words, drawn)


def _what_is_uneven(found: Numbers) -> str:
    """Say what an imbalance ratio is of."""
    if not meets_in_slots(found):
        return "largest load over mean load"
    if in_pipeline(found):
        return "what the longest pipeline takes, over what the mean one would without bubbles"
    return "what it takes, as ranks meet with micro-batches, over what it would if all of them were even"


def _by_step(key: str, name: str, phase: PhaseData) -> Chart:
    """Return the imbalance ratio of every step."""
    ratios = dict(zip(("before", "after", "proven bound"), np.transpose(phase.ratios), strict=True))
    lines = {title: (values, title.removeprefix("proven ")) for title, values in ratios.items()}
    means = {title: mean_steps(values) for title, values in ratios.items()}
    columns = {"from step": means["after"][0].tolist(), **{title: mean.tolist() for title, (*_, mean) in means.items()}}
    worst = [float(ratios[when].max()) for when in ("before", "after")]
    says = of_phase(name, f"Imbalance ratio of each step: at most {worst[0]:.2f} before, {worst[1]:.2f} after")
    draw = partial(charts.over_steps, lines=lines, ylabel="imbalance ratio")
    return Chart(key, says, draw, numbers_of(columns), named(name))


def _lengths(key: str, name: str, phase: PhaseData) -> Chart:
    """Return how many items have which length."""
    there = np.flatnonzero(phase.length_counts)
    bins = np.arange(there[0], there[-1] + 2) if len(there) else there
    counts, edges = phase.length_counts[bins[:-1]], 2.0 ** (bins / BINS_AN_OCTAVE)
    numbers = numbers_of({"length from": np.ceil(edges[:-1]).astype(int).tolist(), "items": counts.tolist()})
    note = f"Left out: {phase.zeros:,} of length 0" if phase.zeros else ""
    says = of_phase(name, f"Number of items by length, {int(counts.sum()):,} together")
    return Chart(key, says, partial(charts.histogram, counts=counts, edges=edges), numbers, named(name), note=note)


def _pipelines(picture: StepPicture, data: PageData) -> Section:
    """Return the section that shows the slowest pipeline of one step."""
    ahead = " Before, encoders run ahead of the pipeline, evenly on all devices."
    words = (
        f"This is {_which(picture, data)}, and of its replicas the one that takes longest, before and after. Numbers "
        f"are micro-batches, what is blank is bubble.{ahead * bool(picture.between)} Small ones first and last fill "
        "and drain a pipeline fast."
    )
    unit = picture.no_bubble, "time, in which the mean replica would take 1 without bubbles"
    title = f"Step {picture.step:,}: stages of one pipeline"
    return pipeline_section(title, words, picture.pipelines, unit, "tokens", picture.between)


def pipeline_section(
    title: str, words: str, runs: charts.Runs, unit: tuple[float, str], held: str = "",
    between: dict[str, Between] | None = None, key: str = "pipeline",
) -> Section:  # fmt: skip
    """Return the section that shows a replica's stages in each of some runs.

    Runs are of pipelines of equally many devices, by names that no user chose, and `between` what runs in the gaps of
    those that have some. `unit` is what times are divided by, and what they then are; `held` what is in flight,
    "tokens" or "bytes", of which a table tells if it is named.
    """
    devices, boxes = max(len(run.busy) for run in runs.values()), between or {}
    stages = next(iter(runs.values())).forward_start.shape[1]
    columns = [f"{way} {stage}" for way in ("forward", "backward") for stage in range(stages)]
    starts = {name: np.concatenate([run.forward_start, run.backward_start], axis=1) for name, run in runs.items()}
    groups = [
        (
            name,
            [(f"{k}", *("" if start < 0 else f"{start / unit[0]:.3f}" for start in row)) for k, row in enumerate(of)],
        )
        for name, of in starts.items()
    ]
    ends = ", ".join(f"{name} {run.makespan / unit[0]:.4g}" for name, run in runs.items())
    says = f"Timeline of the stages of one pipeline, which ends at: {ends}"
    note = f"In flight is what a device holds between forwards and backwards, in {held}; the last row has the mean " \
           "of shares and the most of any device." if held else ""  # fmt: skip
    height = 0.7 + len(runs) * (0.5 + 0.24 * devices)
    draw = partial(charts.gantt, runs=runs, unit=unit, between=boxes)
    numbers = Table(("micro-batch starts", *columns), groups)
    kinds = [("forward", charts.FORWARD), ("backward", charts.BACKWARD)]
    kinds += [("encoders", charts.TASK)] * any(len(each.device) for each in boxes.values())
    keys = [(kind, charts.of_phase(color)) for kind, color in kinds]
    drawn = Chart(key, says, draw, numbers, keys=keys, note=note, height=height, width=9.5, broad=True)
    return Section(title, words, [drawn], _in_flight(runs, boxes, held) if held else None)


def _in_flight(runs: Mapping[str, Any], boxes: dict[str, Between], held: str) -> Table:
    """Return bubbles, and what is held in flight, by device and in all."""
    columns, of_devices = ["device"], [[str(device) for device in range(len(next(iter(runs.values())).busy))] + ["all"]]
    shown = as_bytes if held == "bytes" else "{:,}".format
    for name, run in runs.items():
        columns += [f"bubble, {name}", f"most in flight, {name}"]
        idle = run.idle / run.makespan if run.makespan else np.zeros(len(run.busy))
        of_devices.append([as_percent(float(share)) for share in (*idle, run.bubble)])
        of_devices.append([shown(int(most)) for most in (*run.in_flight, run.in_flight.max())])
    for name, each in boxes.items():
        columns.append(f"beside the pipeline, {name}")
        shares = np.bincount(each.device, each.takes, len(runs[name].busy)) / max(runs[name].makespan, 1)
        of_devices.append([as_percent(float(share)) for share in (*shares, shares.mean())])
    return Table(columns, [("", list(zip(*of_devices, strict=True)))])


def _between_nodes(data: PageData) -> Section:
    """Return the section of the heat map."""
    title = "What travels between nodes"
    if not data.traffic.any():
        return Section(title, "Nothing crosses nodes.")
    scale, unit = _unit_of(float(data.traffic.max()), data.of_bytes)
    each = f" Each row and column stands for {data.nodes_a_row} nodes." if data.nodes_a_row > 1 else ""
    words = f"From each node to each other, all steps together; what stays within a node is left out.{each}"
    nodes = [f"{i * data.nodes_a_row:,}" for i in range(len(data.traffic))]
    columns = dict(zip((f"to {node}" for node in nodes), (data.traffic / scale).T.tolist(), strict=True))
    numbers = numbers_of({f"{unit}, from node": nodes, **columns})
    draw = partial(charts.heat_map, volumes=data.traffic / scale, nodes_a_row=data.nodes_a_row,
                   label=f"{unit} over all steps")  # fmt: skip
    return Section(title, words, [Chart("traffic", "Heat map of traffic between nodes", draw, numbers, height=4)])


def _unit_of(largest: float, of_bytes: bool) -> tuple[float, str]:
    """Return what volumes are divided by to be shown, and what they then are."""
    for power, prefix, word in ((12, "T", "trillion"), (9, "G", "billion"), (6, "M", "million"), (3, "K", "thousand")):
        if largest >= 10.0**power:
            return 10.0**power, f"{prefix}B" if of_bytes else f"{word} elements"
    return 1.0, "B" if of_bytes else "elements"


def _worst(phases: dict[str, PhaseData]) -> Section:
    """Return the table of the most uneven steps and what caps them; of those that are even enough none."""
    columns = ("step", "before", "after", "best possible", "capped by row", "length")
    worst = {
        name: [step for step in sorted(phase.worst, reverse=True) if step.ratio_after > _EVEN]
        for name, phase in phases.items()
    }
    steps = [step for phase in worst.values() for step in phase]
    kinds = ("ratio_before", "ratio_after", "ratio_bound")
    ratios = zip(*(as_ratios(getattr(step, kind) for step in steps) for kind in kinds), strict=True)
    groups = [(named(name), [_worst_row(step, next(ratios)) for step in phase]) for name, phase in worst.items()]
    words = (
        "The steps whose plans are the most uneven: imbalance ratio before, after, and proven to be the best possible. "
        "Where one sample costs more than a rank's fair share, its rank is the slowest whatever is planned; its row in "
        "the log, from 0, says which."
    )
    if not steps:
        return Section("The worst steps", f"By imbalance ratio: none over {_EVEN}.")
    return Section("The worst steps", words, table=Table(columns, groups, empty=f"none over {_EVEN}"))


def _worst_row(worst: WorstStep, ratios: tuple[str, ...]) -> tuple[str, ...]:
    cap = ("—", "—") if worst.cap_row is None else (f"{worst.cap_row:,}", f"{worst.cap_length:,}")
    return f"{worst.step:,}", *ratios, *cap


def _asked(found: Numbers, judged: Mapping[str, pa.Table], data: PageData) -> Section:
    """Return the section that says what plans were to do, and where samples were not kept near their homes."""
    said = [html("{}: {}", named(name), named(words, LONGEST_REASONS)) for name, words in data.asked.items()]
    said += [
        html(
            "What could not be had, {}: {}",
            named(name),
            named(why_not_relocated(phase, len(judged[name])), LONGEST_REASONS),
        )
        for name, phase in found["phases"].items()
        if phase["fell_back"]
    ]
    return Section("What was asked for", "Of each phase, by the plan of the first step.", lines=said)


def _assumed(found: Numbers, data: PageData) -> Section:
    """Return the section that says what the numbers take for granted."""
    compute = [("time of a rank", "proportional to the cost of what it holds, the same on all ranks")]
    if len(data.phases) > 1:
        compute.append(("phases", "one after the other; a phase ends when its slowest rank does"))
    compute.append(("exchange of samples", "takes no time; what it moves is told by itself"))
    short = found.get("short_steps", {}).get("steps", 0)
    steps = [("steps", f"full ones; {counted(short, 'short one')} apart" if short else "all")]
    steps.append(("weights", "a long step counts for more than a short one: ratios are of rank-time"))
    words = html("Waiting and time follow from costs alone. <code>balancer simulate</code> prices steps on a cluster.")
    return Section("Assumed", words, table=Table((), [("Time", compute), ("Steps", steps)]))


def _what_now(found: Numbers, plan: str, log: str) -> Section:
    """Return what to go on with: to train by the plan, to see what it gained, and to wait less still."""
    shares = any("shared_items" in phase for phase in found["phases"].values())
    pasted = list(to_train(plan, shares))
    measured = folded(shlex.join(["balancer", "report", plan, "--measured", "times.csv"]))
    pasted.append(("to set what ranks then took (columns step, rank, seconds) beside what it predicts", measured))
    phases = [phase for phase in found["phases"].values() if "in_pipeline" not in phase]
    if any(phase["waiting_best_possible"] > _WORTH for phase in phases):
        what = "to see what helps where a plan within the step cannot; the dots are options, as the plan was made by"
        pasted.append((what, f"{shlex.join(['balancer', 'advise', log])} ..."))
    return Section("What now", "", pasted=[(f"{what[:1].upper()}{what[1:]}:", lines) for what, lines in pasted])
