"""The page of a plan: what it changes, where ranks wait, and what still caps it."""

from collections.abc import Callable, Iterator
from functools import partial

from balancer.cost import parse_cost
from balancer.report import figures, numbers
from balancer.report.across import across_lines
from balancer.report.canvas import svg_of
from balancer.report.page_data import PageData, PhaseData, StepPicture, WorstStep
from balancer.report.pipeline_figure import pipeline_section
from balancer.report.remarks import warnings_of
from balancer.report.skeleton import card, chart, document, facts, keys, named, section, table, write_document
from balancer.report.summary import PhaseSummary, RunSummary, as_range, waiting
from balancer.report.table import (
    as_bytes,
    as_percent,
    as_ratios,
    before_slots,
    how_many,
    left_out,
    why_not_relocated,
)
from balancer.report.text import counted, escaped

__all__ = ["page", "write_page"]

_MOST_IN_LEAD = 3

LONGEST_REASONS = 1000
"""Characters that are shown of what was asked for, and of why samples were not relocated."""


def write_page(path: str, summary: RunSummary, data: PageData, source: str) -> None:
    """Write the page of a run to a file, which is there as a whole or not at all."""
    write_document(path, page(summary, data, source))


def page(summary: RunSummary, data: PageData, source: str) -> str:
    """Return the page of a run as HTML, from data of the same steps, at least one; `source` says of what."""
    cards = [_headline(name, phase) for name, phase in summary.phases.items()]
    footer = "Every number is recomputed from the plan and its log."
    return document(
        source,
        "rank balance",
        _lead(summary, data),
        _about(summary, data),
        cards + _traffic_headline(summary),
        _sections(summary, data),
        footer,
    )


def _lead(summary: RunSummary, data: PageData) -> str:
    """Return what a plan is worth in one sentence, and what it assumes."""
    phases = {name: phase for name, phase in summary.phases.items() if not phase.follows}
    if len(phases) > 1 and not summary.priced_before:
        return f"{_lead_of_flops(summary.phases, data)}{_lead_of_phases(phases)}"
    assumed = "If time is proportional to cost, and what moves costs none, this plan"
    if len(phases) > 1:
        saved = 1 - summary.priced_after / summary.priced_before
        assumed = "If time is proportional to cost, in one unit for all phases, and what moves costs none, this plan"
        return f"{assumed} makes a step take <strong>{as_percent(max(0.0, saved))} less time</strong>."
    phase = next(iter(phases.values()))
    saved = 1 - phase.ratio_after / phase.ratio_before
    who = "stages" if phase.num_stages else "ranks"
    waited, left, least = (
        as_percent(waiting(ratio)) for ratio in (phase.ratio_before, phase.ratio_after, phase.ratio_bound)
    )
    proof = "proven to be the least possible" if left == least else f"proven: at least {least} under any plan"
    if saved < 0.0005:
        return f"{assumed} saves no time: {who} wait {left} of theirs, as before ({proof})."
    return (
        f"{assumed} makes a step take <strong>{as_percent(saved)} less time</strong>: {who} wait "
        f'<span class="after">{left}</span> of theirs in place of <span class="before">{waited}</span> ({proof}).'
    )


def _lead_of_flops(phases: dict[str, PhaseSummary], data: PageData) -> str:
    """Return what a step of all phases saves where models say how many FLOPs a unit of each cost is; else nothing."""
    units = [_flops_of_unit(phase) for phase in phases.values()]
    if data.laid_out or not all(units) or any(phase.schedule is not None for phase in phases.values()):
        return ""
    before, after = (
        sum(unit * spent for unit, spent in zip(units, of, strict=True))
        for of in ([each.spent_before for each in phases.values()], [each.spent_after for each in phases.values()])
    )
    saved = max(0.0, 1 - after / before) if before else 0.0
    return (
        "If time is proportional to FLOPs, phases run one after the other, and what moves costs none, this plan makes "
        f"a step take <strong>{as_percent(saved)} less time</strong>. "
    )


def _flops_of_unit(phase: PhaseSummary) -> int:
    """Return how many FLOPs a unit of a phase's cost is; 0 where no model that is known by name says so."""
    try:
        named_cost = parse_cost(f"flops:{phase.model}")
    except ValueError:
        return 0
    return named_cost.flops_of_unit if phase.model and str(named_cost) == phase.cost else 0


def _lead_of_phases(phases: dict[str, PhaseSummary]) -> str:
    """Return what a plan is worth in every phase, where costs of phases cannot be added up."""
    most = sorted(phases.items(), key=lambda found: found[1].ratio_after / found[1].ratio_before)[:_MOST_IN_LEAD]
    each = ", ".join(
        f'in {named(name, 40)} <span class="after">{as_percent(waiting(phase.ratio_after))}</span> in place of '
        f'<span class="before">{as_percent(waiting(phase.ratio_before))}</span>'
        for name, phase in most
    )
    return (
        f"With this plan ranks wait {each} of the phase's time, if that is proportional to cost. What a step saves "
        "depends on how long each phase takes: <code>balancer simulate</code> prices it."
    )


def _about(summary: RunSummary, data: PageData) -> str:
    shape = counted(data.num_ranks, "rank") + f" on {data.num_nodes:,} nodes" * (data.num_nodes > 1)
    dropped = "".join(f" {escaped(line)}" for line in warnings_of(summary))
    dropped += f" {left_out(summary)}" if summary.dropped else ""
    dropped += "".join(f" {escaped(line)}" for line in across_lines(summary.across)) if summary.across else ""
    before = f" {before_slots(summary).capitalize()}" if summary.in_slots else ""
    return f"{how_many(summary)}, {shape}.{dropped}{before}"


def _headline(name: str, phase: PhaseSummary) -> str:
    """Return the card of one phase: what waiting costs before and after."""
    before, after, bound = (
        as_percent(waiting(ratio)) for ratio in (phase.ratio_before, phase.ratio_after, phase.ratio_bound)
    )
    if phase.follows:
        words = "imbalance ratio before and after, in the pipeline with the last phase"
        ratios = as_ratios((phase.ratio_before, phase.ratio_after))
        big = f'<span class="before">{ratios[0]}</span> → <span class="after">{ratios[1]}</span>'
        return card(named(name), big, words, [("items", f"{phase.items:,}")])
    numbers = phase.as_json()
    ratios = as_ratios((phase.ratio_before, phase.ratio_after, phase.ratio_bound))
    rows = {
        "imbalance ratio": f"{ratios[0]} → {ratios[1]}",
        "best possible, proven": ratios[2],
        "gap, mean": as_percent(numbers["gap_mean"]),
        "gap, largest": as_percent(numbers["gap_largest"]),
        "steps proven optimal": f"{phase.proven_optimal_steps:,} of {phase.steps:,}",
    }
    if phase.eps and phase.placement == "relocate":
        rows[f"steps within eps ({as_percent(phase.eps)})"] = f"{phase.within_eps_steps:,} of {phase.steps:,}"
    if phase.schedule is not None:
        rows[f"micro-batches ({phase.schedule})"] = as_range(phase.fewest_slots, phase.most_slots)
    if phase.items_volume:
        rows["items that ranks share"] = f"{phase.shared_items:,}, {as_percent(phase.shared_fraction)} of all elements"
    for degree, count in phase.groups_by_degree.items():
        rows[f"groups of {counted(int(degree), 'rank')}"] = f"{count:,}"
    if phase.num_stages:
        rows["pipeline stages"] = f"{phase.num_stages:,}"
    if phase.fell_back:
        rows["steps not relocated"] = f"{len(phase.fell_back):,} of {phase.steps:,}"
    big = f'<span class="before">{before}</span> → <span class="after">{after}</span>'
    what = "of all stages' time is bubble" if phase.num_stages else "of rank-time is waiting"
    words = f"{what}, before and after; at least {bound} under any plan"
    return card(named(name), big, words, rows.items())


def _traffic_headline(summary: RunSummary) -> list[str]:
    """Return the card of what moves, if there are streams or several nodes."""
    if summary.streams:
        rows = [
            (named(name), f"{as_bytes(stream.inter_node / summary.steps)} of {as_bytes(stream.total / summary.steps)}")
            for name, stream in summary.streams.items()
        ]
        if any(stream.bounded for stream in summary.streams.values()):
            must = sum(stream.inter_node_bound for stream in summary.streams.values())
            rows.append(("must cross, on these replicas", as_bytes(must / summary.steps)))
        big, what = as_bytes(summary.inter_node_bytes / summary.steps), "cross nodes in a step, on average"
    else:
        phase = next(iter(summary.phases.values()))
        if not phase.several_nodes:
            return []
        numbers = phase.as_json()
        rows = [("moves within nodes", as_percent(numbers["moves_within_nodes"]))]
        if phase.inter_node_bound:
            rows.append(("must cross nodes, proven", as_percent(numbers["must_cross_nodes"])))
        big, what = as_percent(numbers["crosses_nodes"]), "of all volume crosses nodes"
    return [card("traffic", big, what, rows)]


def _sections(summary: RunSummary, data: PageData) -> Iterator[str]:
    """Yield the parts below the headline."""
    more = " Where ranks meet in micro-batches, they wait for more than these sums show." if summary.in_slots else ""
    words = (
        "Load of each rank over the mean, ranks from the busiest to the idlest, of all full steps together. A phase "
        f"lasts as long as its busiest rank; below its load, all others wait.{more}"
    )
    if summary.in_pipeline:
        words = (
            "Time of each replica's pipeline over that of the mean one without bubbles, from the longest to the "
            "shortest, of all full steps together. A step lasts as long as the longest."
        )
    yield section(
        "Where ranks wait",
        words,
        _charts(data, "profile", _of_profile, figures.profile, numbers.profile),
    )
    if data.picture is not None and data.picture.pipelines:
        yield _pipelines(data.picture, data.asked_step is not None)
    elif data.picture is not None:
        yield _timeline(data.picture, data.asked_step is not None)
    if data.num_nodes > 1:
        yield _between_nodes(data)
    yield section(
        "Step by step",
        f"Imbalance ratio of each step: {_what_is_uneven(summary)}. Between plan and proven bound lies the gap.",
        _charts(data, "steps", _of_steps, figures.by_step, numbers.by_step),
    )
    yield _worst(data)
    yield _asked(summary, data)
    yield _assumed(summary, data)
    yield section(
        "How long items are",
        "Items by length, on a logarithmic axis. The longest set what no plan can mend.",
        _charts(data, "lengths", _of_lengths, figures.lengths, numbers.lengths),
    )


def _what_is_uneven(summary: RunSummary) -> str:
    """Say what an imbalance ratio is of."""
    if not summary.in_slots:
        return "largest load over mean load"
    if summary.in_pipeline:
        return "what the longest pipeline takes, over what the mean one would without bubbles"
    return "what it takes, as ranks meet with micro-batches, over what it would if all of them were even"


def _of_profile(phase: PhaseData) -> str:
    before, after = (loads[0] for loads in phase.profiles()[:2])
    return f"Load of ranks over the mean: the busiest {before:.2f} before, {after:.2f} after"


def _of_steps(phase: PhaseData) -> str:
    worst = [max(ratio[when] for ratio in phase.ratios) for when in (0, 1)]
    return f"Imbalance ratio of each step: at most {worst[0]:.2f} before, {worst[1]:.2f} after"


def _of_lengths(phase: PhaseData) -> str:
    return f"Number of items by length, {int(phase.length_counts.sum()):,} in all"


def _charts(
    data: PageData,
    kind: str,
    description: Callable[[PhaseData], str],
    draw: Callable[..., None],
    behind: Callable[[PhaseData], str],
) -> list[str]:
    """Return a chart of one kind for each phase, with its description and its numbers."""
    charts = []
    for i, (name, phase) in enumerate(data.phases.items()):
        if name in data.following and kind != "lengths":
            continue
        svg = svg_of(f"{kind}-{i}", partial(draw, phase=phase))
        note = f"Left out: {phase.zeros:,} of length 0" if kind == "lengths" and phase.zeros else ""
        words = f"{description(phase)}; phase {name}"
        charts.append(chart(f"{kind}-{i}", named(name), words, svg, behind(phase), note))
    return charts


def _pipelines(picture: StepPicture, asked_for: bool) -> str:
    """Return the section that shows the slowest pipeline of one step."""
    which = "the step asked for" if asked_for else "the step in which the plan saves most"
    late = any(each.late.any() for each in picture.between.values())
    ahead = f" Before, encoders run ahead of the pipeline, evenly on all devices{', and generators behind it' * late}."
    words = (
        f"This is {which}, and of its replicas the one that takes longest, before and after. Numbers are "
        f"micro-batches, what is blank is bubble.{ahead * bool(picture.between)} Small ones first and last fill and "
        "drain a pipeline fast."
    )
    unit = picture.no_bubble, "time, in which the mean replica would take 1 without bubbles"
    title = f"Step {picture.step:,}: stages of one pipeline"
    return pipeline_section(title, words, picture.pipelines, unit, "tokens", picture.between)


def _timeline(picture: StepPicture, asked_for: bool) -> str:
    """Return the section that shows one step by rank."""
    which = "the step asked for" if asked_for else "the step in which the plan saves most"
    each = (
        f" Each row stands for {picture.ranks_a_row} ranks, and shows the busiest." if picture.ranks_a_row > 1 else ""
    )
    svg = svg_of("timeline", lambda figure: figures.timeline(figure, picture), height=6)
    return section(
        f"Step {picture.step:,} by rank",
        f"This is {which}. A phase starts when the slowest rank has ended the one before; what is blank is waiting. "
        f"Phases are drawn in units of their own mean load.{each}",
        [chart("timeline", "", _of_timeline(picture), svg, numbers.timeline(picture))],
        before=keys(picture.phases),
        tall=True,
    )


def _of_timeline(picture: StepPicture) -> str:
    before, after = (sum(float(loads[when].max()) for loads in picture.phases.values()) for when in (0, 1))
    return f"Timeline of one step by rank: it takes {before:.2f} before, {after:.2f} after, in units of the mean load"


def _between_nodes(data: PageData) -> str:
    """Return the section of the heat map."""
    title = "What travels between nodes"
    if not data.traffic.any():
        return section(title, "Nothing crosses nodes.")
    each = f" Each row and column stands for {data.nodes_a_row} nodes." if data.nodes_a_row > 1 else ""
    svg = svg_of("traffic", lambda figure: figures.traffic(figure, data), height=4)
    words = f"From each node to each other, all steps together; what stays within a node is left out.{each}"
    return section(
        title, words, [chart("traffic", "", "Heat map of traffic between nodes", svg, numbers.traffic(data))]
    )


def _worst(data: PageData) -> str:
    """Return the table of the most uneven steps and what caps them."""
    columns = (
        ("step", True), ("before", True), ("after", True), ("at best", True), ("capped by row", True), ("length", True)
    )  # fmt: skip
    worst = {
        name: sorted(phase.worst, reverse=True) for name, phase in data.phases.items() if name not in data.following
    }
    steps = [step for phase in worst.values() for step in phase]
    ratios = zip(
        as_ratios(step.ratio_before for step in steps),
        as_ratios(step.ratio_after for step in steps),
        as_ratios(step.ratio_bound for step in steps),
        strict=True,
    )
    groups = [(named(name), [_worst_row(step, next(ratios)) for step in phase]) for name, phase in worst.items()]
    return section(
        "The worst steps",
        "The steps whose plans are the most uneven: imbalance ratio before, after, and proven to be the best possible. "
        "Where one sample costs more than a rank's fair share, its rank is the slowest whatever is planned; its row in "
        "the log, from 0, says which.",
        after=table(columns, groups),
    )


def _asked(summary: RunSummary, data: PageData) -> str:
    """Return the section that says what plans were to do, and where samples were not kept near their homes."""
    asked = "".join(f"<li>{named(name)}: {named(words, LONGEST_REASONS)}</li>" for name, words in data.asked.items())
    missed = "".join(
        f"<li>{named(name)}: {named(why_not_relocated(phase), LONGEST_REASONS)}</li>"
        for name, phase in summary.phases.items()
        if phase.fell_back
    )
    after = f"<ul>{asked}</ul>"
    if missed:
        after += f"<p>What could not be had:</p><ul>{missed}</ul>"
    return section("What was asked for", "Of each phase, by the plan of the first step.", after=after)


def _assumed(summary: RunSummary, data: PageData) -> str:
    """Return the section that says what the numbers take for granted."""
    compute = [("time of a rank", "proportional to the cost of what it holds, the same on all ranks")]
    if len(data.phases) > 1:
        compute.append(("phases", "one after the other; a phase ends when its slowest rank does"))
    compute.append(("exchange of samples", "takes no time; what it moves is told by itself"))
    apart = f"full ones; {counted(summary.short_steps, 'short one')} apart"
    steps = [("steps", apart if summary.short_steps else "all")]
    steps.append(("weights", "a long step counts for more than a short one: ratios are of rank-time"))
    words = "Waiting and time follow from costs alone. <code>balancer simulate</code> prices steps on a cluster."
    return section("Assumed", words, after=facts([("Time", compute), ("Steps", steps)]))


def _worst_row(worst: WorstStep, ratios: tuple[str, ...]) -> tuple[str, ...]:
    cap = ("—", "—") if worst.cap_row is None else (f"{worst.cap_row:,}", f"{worst.cap_length:,}")
    return f"{worst.step:,}", *ratios, *cap
