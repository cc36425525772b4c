"""The pictures of the README and the site, light and dark: docs/pictures/*.svg.

Run: python docs/draw.py [NAME ...]. They are drawn from plans made here, by the figures of `balancer report`.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import balancer
import solvers
from balancer import Phase, SequenceGroups, Topology
from balancer.io.log import open_log
from balancer.offline.settings import LogSettings
from balancer.offline.steps import plan_log
from balancer.problem.setup import Setup
from balancer.report.charts import COLORS, gantt, svg_of
from balancer.report.simulation_page import time_split
from balancer.simulate import CLUSTERS, PhaseModel, simulate_log

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "data" / "omni_mix_dev.parquet"
TOKENS = "text_tokens+image_tokens+audio_tokens"
PHASES = {
    "vision": Phase("vision", "image_patches", outputs="image_tokens"),
    "audio": Phase("audio", "audio_frames", outputs="audio_tokens"),
    "llm": Phase("llm", TOKENS, own="text_tokens"),
}
MODELS = ("internvit-6b", "whisper-large-v3-encoder", "qwen2-72b")
WIDTH = 6.8  # inches: on a phone, where pictures are 640 pixels wide and scroll, text has 12 pixels
NARROW = 3.8
DARK = {
    "page": "#15171a", "ink": "#ececec", "faint": "#a6a6a6", "before": "#ff9a4d", "after": "#6cc0f5", "bad": "#ff7b8a",
    "phase-0": "#4da3dd", "phase-1": "#f0b429", "phase-2": "#2fc299", "phase-3": "#e39ac2", "phase-4": "#8fd0f5",
    "phase-5": "#cf9f4a",
}  # fmt: skip
"""The colours of dark pictures, by the names of `COLORS`."""


def columns() -> dict[str, np.ndarray]:
    """Return the columns of the shipped log, and the tokens of each sample."""
    table = pq.read_table(LOG)
    found = {name: table[name].to_numpy() for name in table.column_names if "source" not in name}
    return found | {"tokens": sum(found[name] for name in TOKENS.split("+"))}


def step(stacked: bool = False) -> tuple[str, float, float]:
    """Load of every rank in one step, as sampled and planned, side by side or one above the other."""
    ranks, each, which = 64, 16, 50
    lengths = columns()["tokens"][which * ranks * each : (which + 1) * ranks * each]
    plan = balancer.balance(lengths, ranks, 8, np.repeat(np.arange(ranks), each))

    def draw(figure: Any) -> None:
        axes = figure.subplots(*((2, 1) if stacked else (1, 2)), sharex=stacked, sharey=True)
        for axis, values, color, name in (
            (axes[0], plan.home_loads, COLORS["before"], "as sampled"),
            (axes[1], plan.loads, COLORS["after"], "planned"),
        ):
            axis.bar(range(ranks), values / 1000, color=color, width=0.86)
            axis.axhline(values.max() / 1000, color=COLORS["ink"], linestyle="--", linewidth=1)
            axis.set(xlabel="" if stacked and axis is axes[0] else "rank", xlim=(-1, ranks))
            axis.set_title(f"{name}: {1 - values.mean() / values.max():.1%} of all time is waiting", fontsize=10)
        axes[0].set_ylabel("thousand tokens")

    width, height = (NARROW, 4.4) if stacked else (WIDTH, 2.8)
    return svg_of("step", draw, height, width), width, height


def step_narrow() -> tuple[str, float, float]:
    """The same for a phone."""
    return step(stacked=True)


def loads() -> tuple[str, float, float]:
    """Load of every rank in three phases, before and after."""
    # By phase: loads before and after, sorted, over all full steps; and the bound
    sums: dict[str, list[np.ndarray]] = {}
    for plan in plan_log(open_log(LOG), LogSettings(Setup(Topology.uniform(64, 8), tuple(PHASES.values())), 16)):
        for name, phase in plan.phases.items() if plan.num_samples == 64 * 16 else ():
            each = phase.plan
            found = [np.sort(each.home_loads)[::-1], np.sort(each.loads)[::-1], np.array([each.lower_bound])]
            sums[name] = [a + b for a, b in zip(sums[name], found, strict=True)] if name in sums else found

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 3, sharey=True)
        for axis, (name, (before, after, bound)) in zip(axes, sums.items(), strict=True):
            share = np.linspace(0, 100, len(before) + 1)
            ends = {"baseline": None, "linewidth": 2}
            axis.stairs(before / before.mean(), share, color=COLORS["before"], linestyle="--", label="before", **ends)
            axis.stairs(after / after.mean(), share, color=COLORS["after"], label="after", **ends)
            axis.axhline(
                bound[0] / after.mean(),
                color=COLORS["ink"],
                linestyle=":",
                linewidth=1.2,
                label="proven bound on the first",
            )
            axis.set(
                title=name, xlabel="ranks, busiest first, %", ylabel="load / mean load", xlim=(0, 100), ylim=(0, 3.2)
            )
        for axis in axes[1:]:
            axis.set_ylabel("")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)

    return svg_of("loads", draw, 3, WIDTH), WIDTH, 3


def crossing() -> tuple[str, float, float]:
    """What crosses nodes against eps: relocation, its proven bound, and rearrangement."""
    ranks, each, which = 64, 16, 50
    lengths = columns()["tokens"][which * ranks * each : (which + 1) * ranks * each]
    home = np.repeat(np.arange(ranks), each)
    every = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.2, 0.3)

    def share(volume: int) -> float:
        return 100 * volume / int(lengths.sum())

    plans = [balancer.balance(lengths, ranks, 8, home, eps=eps, time_budget=0.1) for eps in every]
    moved = share(balancer.balance(lengths, ranks, 8, home, placement="rearrange").inter_node_volume)

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        percent = [100 * eps for eps in every]
        crosses = [share(plan.inter_node_volume) for plan in plans]
        axis.axhline(moved, color=COLORS["before"], linestyle="--", linewidth=2)
        axis.text(percent[0], moved * 0.95, f"rearranged (balanced first, then laid on nodes): {moved:.0f} %", va="top")
        axis.plot(percent, crosses, color=COLORS["after"], marker="o", linewidth=2)
        axis.plot(percent, [share(plan.inter_node_bound) for plan in plans], color=COLORS["ink"], linestyle=":")
        at_default = crosses[every.index(1e-3)]
        axis.text(percent[0], 1.5 * crosses[0], f"relocated: {at_default:.1f} % by default, on the dotted line of what "
                  "must cross, proven", va="bottom")  # fmt: skip
        axis.set(
            xscale="log", ylim=0, xlabel="eps: how much longer a step may take, %", ylabel="tokens that cross nodes, %"
        )
        axis.set_xticks([0.001, 0.01, 0.1, 1, 10], ["0.001", "0.01", "0.1 (default)", "1", "10"])
        axis.minorticks_off()

    return svg_of("crossing", draw, 3.2, WIDTH), WIDTH, 3.2


def ramp() -> tuple[str, float, float]:
    """The stages of one pipeline over time: even micro-batches above, a ramp below."""
    replicas, slots, stages = 4, 12, 4
    tokens = columns()["tokens"]
    work = tokens[tokens <= 8192][: replicas * slots * 8, None]
    forward = np.ones((1, stages), dtype=np.int64)
    order = solvers.pipeline.one_f_one_b(slots, stages)
    runs = {}
    even = solvers.partition(work[:, 0], replicas * slots, "lpt").group_of_item
    ramp = solvers.schedule_pipeline(work, forward, 2 * forward, replicas, slots, time_budget=0.5)
    cells = {"even micro-batches": even, "a ramp": ramp.replica_of_item * slots + ramp.slot_of_item}
    for title, cell_of_item in cells.items():
        held = np.zeros((replicas * slots, 1), dtype=np.int64)
        np.add.at(held, cell_of_item, work)
        each = [solvers.pipeline.run(loads, forward, 2 * forward, order) for loads in np.split(held, replicas)]
        runs[title] = max(each, key=lambda run: run.makespan)
    unit = 3 * int(work.sum()) / replicas, "time; without bubbles the mean pipeline would take 1"

    def draw(figure: Any) -> None:
        gantt(figure, runs, unit)

    return svg_of("ramp", draw, 3.6, WIDTH), WIDTH, 3.6


def groups() -> tuple[str, float, float]:
    """The ranks of one step over time, where long samples run on several."""
    ranks, each = 32, 12
    lengths = columns()["tokens"][104 * ranks * each : 105 * ranks * each].copy()
    lengths[:6] = 90_000, 40_000, 28_000, 26_000, 20_000, 20_000  # this step has no long ones
    shared = SequenceGroups((1, 2, 4, 8), 16_384, count=2)
    plan = balancer.balance(lengths, ranks, 8, cut=shared)
    whole = float(lengths.sum()) / ranks

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        start, seen = 0.0, set()
        for slot in range(plan.num_slots):
            here = plan.groups(slot)
            for group in here:
                color = COLORS[f"phase-{ {1: 4, 2: 2, 4: 1, 8: 0}[group.degree] }"]
                box = {"height": 0.92 * group.degree, "align": "edge", "linewidth": 0}
                many = f"{group.degree} ranks" if group.degree > 1 else "single ranks"
                label = {} if many in seen else {"label": many}
                seen.add(many)
                axis.barh(group.ranks[0], group.load / whole, left=start, color=color, **box, **label)
            start += max(group.load for group in here) / whole
            axis.axvline(start, color=COLORS["ink"], linewidth=0.9)
        axis.set(
            ylim=(ranks, 0),
            xlim=0,
            ylabel="rank",
            xlabel="time over what an even step would take; lines: all ranks wait",
        )
        axis.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, handlelength=1.2)

    return svg_of("groups", draw, 3.6, WIDTH), WIDTH, 3.6


def split() -> tuple[str, float, float]:
    """Compute, waiting and exchange of a step on 64 nodes of 8 H100s, a rank each, by strategy."""
    cluster = CLUSTERS["h100"].with_ranks_of(8)
    peak, names = cluster.peak_flops, dict(zip(PHASES, MODELS, strict=True))
    models = {
        name: PhaseModel.on(model, peak, 0.5, piece=1024 if name == "vision" else None, checkpointing=True)
        for name, model in names.items()
    }
    moved = {"vision": (1176, 16384), "audio": (256, 16384), "llm": (4, 1)}
    phases = tuple(
        replace(phase, cost=models[name].cost_model(), bytes_in=moved[name][0], bytes_out=moved[name][1])
        for name, phase in PHASES.items()
    )
    settings = LogSettings(Setup(cluster.topology(64), phases), 16)
    found = simulate_log(open_log(LOG), settings, models, cluster, num_steps=100)
    return svg_of("split", time_split(found.strategies), 2.3, WIDTH), WIDTH, 2.3


PICTURES: dict[str, Callable[[], tuple[str, float, float]]] = {
    draw.__name__: draw for draw in (step, step_narrow, loads, crossing, ramp, groups, split)
}


def main(names: list[str]) -> None:
    for name in names or PICTURES:
        drawn, width, height = PICTURES[name]()
        for scheme, colors in (("light", COLORS), ("dark", DARK)):
            svg = drawn.replace(' aria-hidden="true"', "", 1)
            svg = svg.replace(
                "<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{96 * width:.0f}" height="{96 * height:.0f}" '
                'font-family="system-ui, sans-serif" ', 1)  # fmt: skip
            # Text and axes that have no colour of their own are black.
            svg = svg.replace("<svg ", f'<svg fill="{colors["ink"]}" ', 1).replace("#000000", colors["ink"])
            for key, color in COLORS.items():
                svg = svg.replace(color, colors[key])
            (ROOT / "docs" / "pictures" / f"{name}-{scheme}.svg").write_text(svg + "\n")
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
