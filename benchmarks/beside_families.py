"""The families that beside.py runs on two commits: steps of real logs and of lognormal lengths, drawn by a seed.

A case is one call of the package as a user makes it, and says how good the answer is. beside.py starts this file once
for each commit, with that commit's packages in front on the path: a line on standard input asks for the next case, a
line of JSON on standard output is its answer. Nothing here may come from the side that is measured, but the call.
"""

import inspect
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from common import DATA, column, kinds_of_rules, log

import balancer
import solvers
from solvers._jit import compile_at_once

SOURCES = ("lognormal", "mix", "documents")
COSTS = ("linear", "quadratic")
QUADRATIC = "quadratic:a=24576,b=1"  # attention beside all else, as in a model of 7B
NODE = 8
PHASES = {"vision": "patches", "llm": "tokens"}

# In nanoseconds a token and token squared: what a pipeline's encoders and its language model take.
ENCODER, MODEL = (9_000, 6), (160_000, 3)
# FlexSP's constants for a 7B model on A100: nanoseconds a token squared, a token, and a token sent at each degree.
SQUARE, TOKEN, OVERHEAD = 5.128, 183_957.6, 629_356_300
SENT = {2: 119.54, 4: 104.07, 8: 96.5, 16: 10.33, 32: 5.94, 64: 4.87}

Answer = dict[str, Any]
Case = tuple[str, Callable[[], Answer]]


def lengths(source: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """A step of so many samples: consecutive rows of a log from anywhere (it goes round), or lognormal lengths."""
    if source == "lognormal":
        return np.clip(rng.lognormal(np.log(2000) - 0.5, 1.0, size), 1, 32768).astype(np.int64)
    rows = log(source)
    return rows[(np.arange(size) + rng.integers(len(rows))) % len(rows)]


def priced(tokens: np.ndarray, kind: str) -> np.ndarray:
    return tokens if kind == "linear" else 24576 * tokens + tokens * tokens


def of(found: Any, **more: Any) -> Answer:
    """How long the answer's step takes, and the bound that comes with it."""
    return {"value": int(found.makespan), "bound": int(found.lower_bound), **more}


# Whole samples to groups ----------------------------------------------------------------------------------------------


def shares(rng: np.random.Generator, equal_counts: bool, **asked: Any) -> Iterator[Case]:
    for per_group, groups in itertools.product((3, 4, 8, 16, 64), (8, 64, 512, 2560)):
        for source, kind in (
            itertools.product(SOURCES, COSTS) if per_group * groups < 50_000 else [("mix", "quadratic")]
        ):
            costs = priced(lengths(source, per_group * groups, rng), kind)
            ask = partial(solvers.partition, costs, groups, equal_counts=equal_counts, **asked)
            yield f"{source} {kind} {per_group} x {groups}", lambda ask=ask: of(ask())


def rules(rng: np.random.Generator, shapes: list[tuple[int, int]], tight: bool, **asked: Any) -> Iterator[Case]:
    for n, m in shapes:
        seed = int(rng.integers(2**31))
        # With few items caps are multiples of what LPT makes of the tokens, so that many of them can be kept to.
        tokens = np.clip(np.random.default_rng(seed).lognormal(np.log(2000) - 0.5, 1.0, n), 1, 32768).astype(np.int64)
        room = solvers.partition(tokens, m, "lpt").makespan if tight else None
        for name, costs, given in kinds_of_rules(n, m, seed, room):
            ask = partial(solvers.partition, costs, m, **given, **asked)
            yield f"{name}, {n} on {m}", lambda ask=ask: of(ask())


def prompts(rng: np.random.Generator, **asked: Any) -> Iterator[Case]:
    """Responses to shared prompts, a prompt computed once on each rank that has one of its responses."""
    for ranks, per_rank, responses in itertools.product((8, 64), (1, 3, 8), (8, 16)):
        prompt = np.repeat(np.arange(ranks * per_rank), responses)
        own = lengths("lognormal", len(prompt), rng)
        once = lengths("documents", ranks * per_rank, rng)
        ask = partial(solvers.partition, own, ranks, prefix=prompt, prefix_costs=once[prompt], **asked)
        yield f"{ranks} ranks, {per_rank} prompts each of {responses}", lambda ask=ask: of(ask())


# Near home ------------------------------------------------------------------------------------------------------------


def crossed(ask: Callable[..., Any], tokens: np.ndarray) -> Answer:
    """Also what crosses nodes, and whether the plan is at heart the partition laid on ranks, whatever it says."""
    plan, laid = ask(placement="relocate"), ask(placement="rearrange")
    total, must = int(tokens.sum()), plan.inter_node_bound
    spared = laid.inter_node_volume - plan.inter_node_volume
    fell = bool(plan.fell_back) or 2 * spared < laid.inter_node_volume - must
    return of(plan, crosses=100 * plan.inter_node_volume / total, fell_back=fell)


def near_home(rng: np.random.Generator, limit: str, **asked: Any) -> Iterator[Case]:
    for ranks, per_rank in itertools.product((64, 256, 2560), (4, 16, 64)):
        if per_rank * ranks > 50_000 and limit != "free":
            continue
        for source, kind in itertools.product(SOURCES, COSTS if ranks < 2560 else COSTS[1:]):
            tokens = lengths(source, ranks * per_rank, rng)
            home, cost = np.repeat(np.arange(ranks), per_rank), "linear" if kind == "linear" else QUADRATIC
            kept: dict[str, Any] = {"equal_counts": True} if limit == "equal" else {}
            if limit == "cap":
                kept = {"max_tokens_per_rank": max(int(tokens.max()), int(1.1 * tokens.sum() / ranks))}
            ask = partial(balancer.balance, tokens, ranks, NODE, home, cost, **kept, **asked)
            yield f"{source} {kind} {ranks} x {per_rank}", partial(crossed, ask, tokens)


def two_phases(rng: np.random.Generator, **asked: Any) -> Iterator[Case]:
    """Images, then all tokens, with homes: makespans added up, both over one unit of cost."""
    for ranks, per_rank in itertools.product((16, 64, 256), (4, 16)):
        rows = (np.arange(ranks * per_rank) + rng.integers(100_000)) % len(log("mix"))
        batch = {"patches": column("omni_mix_dev", "image_patches")[rows], "tokens": log("mix")[rows]}

        def case(ranks: int = ranks, batch: dict[str, np.ndarray] = batch, each: int = per_rank) -> Answer:
            home = np.repeat(np.arange(ranks), each)
            steps = balancer.orchestrate(batch, PHASES, ranks, NODE, home_rank=home, **asked)
            plans = [steps[name] for name in PHASES]
            total = sum(int(lengths.sum()) for lengths in batch.values())
            return {
                "value": sum(int(plan.makespan) for plan in plans),
                "bound": sum(int(plan.lower_bound) for plan in plans),
                "crosses": 100 * sum(int(plan.inter_node_volume) for plan in plans) / total,
                "fell_back": any(bool(plan.fell_back) for plan in plans),
            }

        yield f"mix {ranks} x {per_rank}", case


# Micro-batches --------------------------------------------------------------------------------------------------------

# A side may be older than the name "sync", and than its value "micro_batch".
SYNC = "sync" if "sync" in inspect.signature(solvers.schedule_micro_batches).parameters else "objective"


def in_its_words(sync: str) -> str:
    return "lockstep" if (SYNC, sync) == ("objective", "micro_batch") else sync


def micro_batches(rng: np.random.Generator, sync: str, **_: Any) -> Iterator[Case]:
    for (per_rank, ranks), factor in itertools.product(((8, 8), (16, 64), (64, 64), (16, 512)), (2, 8)):
        for source, kind in zip(SOURCES, ("quadratic", "linear", "quadratic"), strict=True):
            tokens = lengths(source, per_rank * ranks, rng)
            cap = max(int(tokens.max()), int(factor * tokens.mean()))
            kept = {SYNC: in_its_words(sync), "stages": 4 if sync == "pipeline" else 1, "time_budget": 0.01}

            def case(
                tokens: np.ndarray = tokens, kind: str = kind, ranks: int = ranks, cap: int = cap, kept: Answer = kept
            ) -> Answer:
                found = solvers.schedule_micro_batches(priced(tokens, kind), tokens, ranks, cap, **kept)
                return {"value": int(found.value), "bound": int(found.lower_bound)}

            yield f"{source} {kind} {ranks} x {per_rank}, cap {factor} means", case


def micro_batches_near_home(rng: np.random.Generator, **asked: Any) -> Iterator[Case]:
    every = itertools.product(("micro_batch", "step", "pipeline"), ((64, 16), (64, 64), (256, 32)), SOURCES)
    for sync, (ranks, per_rank), source in every:
        tokens = lengths(source, ranks * per_rank, rng)
        cap = max(int(tokens.max()), int(6 * tokens.mean()))
        cut = balancer.MicroBatches(cap, in_its_words(sync), pipeline_stages=4 if sync == "pipeline" else 1)
        home = np.repeat(np.arange(ranks), per_rank)
        ask = partial(balancer.balance, tokens, ranks, NODE, home, QUADRATIC, cut=cut, eps=0.001, **asked)
        yield f"{sync} {source} {ranks} x {per_rank}", partial(crossed, ask, tokens)


# Pipelines, and work in their gaps ------------------------------------------------------------------------------------


def samples(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Nanoseconds of so many samples of up to 8,192 tokens, forwards: in the encoders, in the language model."""
    tokens, patches = log("mix"), column("omni_mix_dev", "image_patches")
    rows = np.flatnonzero(tokens <= 8192)
    rows = rows[(np.arange(size) + rng.integers(len(rows))) % len(rows)]
    return tuple(a * x + b * x * x for (a, b), x in ((ENCODER, patches[rows]), (MODEL, tokens[rows])))  # type: ignore[return-value]


def pipelines(rng: np.random.Generator, **_: Any) -> Iterator[Case]:
    shapes = ((4, 1, 8, 16, 8), (8, 2, 8, 32, 8), (8, 2, 8, 16, 8), (8, 2, 8, 32, 4), (4, 1, 8, 4, 8), (4, 1, 8, 16, 2))
    for stages, first, replicas, slots, each in (*shapes, *shapes[:3]):
        encoders, model = samples(rng, replicas * slots * each)
        work = np.stack([encoders // first, model // (stages - first)], axis=1)
        unit = np.array([[1] * first + [0] * (stages - first), [0] * first + [1] * (stages - first)])
        ask = partial(solvers.schedule_pipeline, work, unit, 2 * unit, replicas, slots, time_budget=0.3)
        yield f"{stages} ({first}) stages, {replicas} x {slots} x {each}", lambda ask=ask: of(ask())


def gaps(rng: np.random.Generator, **_: Any) -> Iterator[Case]:
    for (stages, replicas, slots), room in itertools.product(((4, 4, 16), (8, 4, 32)), (False, True)):
        encoders, model = samples(rng, replicas * slots * 8)
        unit, owner = np.ones((1, stages), dtype=np.int64), np.flatnonzero(encoders)
        spent = encoders[owner]
        held = max(int(encoders.max()), int(2 * encoders.sum() / replicas / slots)) if room else None
        request = solvers.PipelineRequest(model[:, None] // stages, unit, 2 * unit, replicas, slots)
        tasks = solvers.TaskRequest(owner, spent, 2 * spent, stages, spent, held_cap=held)
        ask = partial(solvers.schedule_multiplexed, request, tasks, time_budget=0.5)
        yield f"{stages} devices, {replicas} x {slots}, {'2 slots' if room else 'all'}", lambda ask=ask: of(ask())


# Long samples ---------------------------------------------------------------------------------------------------------


def sequence_groups(rng: np.random.Generator, **_: Any) -> Iterator[Case]:
    rows = pq.read_table(DATA / "sequence_groups_dev.parquet").to_pylist()
    steps = [(np.array(row["lengths"], np.int64), 64, row["cap"], row["set"]) for row in rows[::3]]
    for (ranks, n), source in itertools.product(((64, 256), (256, 2048), (1024, 8192)), ("documents", "lognormal")):
        tokens = np.clip(lengths(source, n, rng) * 4, 128, 190_000) // 128 * 128
        steps += [(tokens, ranks, 6449, source)]
    for tokens, ranks, cap, name in steps:
        degrees = [d for d in SENT if d <= ranks]
        times = np.stack([(SQUARE * tokens**2 + (TOKEN + 2e6 / SENT[d]) * tokens) // d for d in degrees])
        asked = {"overhead": OVERHEAD, "time_budget": 0.1}
        ask = partial(solvers.sequence_groups, times.astype(np.int64), tokens, degrees, ranks, cap, **asked)
        yield f"{name} {len(tokens)} on {ranks}", lambda ask=ask: of(ask())


def long_short(rng: np.random.Generator, **_: Any) -> Iterator[Case]:
    patches = column("docs_msdev_interleaved", "image_patches")
    patches = patches[patches > 0]
    for ranks, per_rank, dear in itertools.product((8, 32), (1, 4, 16), (1, 10)):
        mine = patches[(np.arange(ranks * per_rank) + rng.integers(len(patches))) % len(patches)]
        degrees = [d for d in (2, 4, 8, 16, 32) if d <= ranks]
        alone = (3_700_000 * mine + 500 * mine * mine) // 1000
        shared = np.array([-(-alone // d) + 437 * dear * mine // d for d in degrees])
        ask = partial(solvers.long_short, alone, shared, ranks, degrees=degrees, overhead=1_920_000)
        yield f"{ranks} x {per_rank}, sending {dear}", lambda ask=ask: of(ask())


def across_steps(rng: np.random.Generator, **_: Any) -> Iterator[Case]:
    """The sum of all steps' makespans, over the proven bound."""
    for ranks, delay, source in itertools.product((16, 64), (1, 4), ("documents", "lognormal")):
        tokens = np.minimum(lengths(source, 20_000, rng) * (1 if source == "documents" else 4), 131_072)
        asked = {"step_tokens": ranks * 65_536, "max_tokens_per_rank": 131_072, "drop_last": True}

        def case(tokens: np.ndarray = tokens, ranks: int = ranks, delay: int = delay, asked: Answer = asked) -> Answer:
            new = "window" in signature(balancer.defer).parameters  # the other commit may have the words of b2a174ce
            window = {"window": delay} if new else {"early": delay, "late": delay}
            found = balancer.defer(tokens, ranks, cost="quadratic:a=70455,b=1", **window, **asked)
            return {"value": int(found.total), "bound": int(found.lower_bound)}

        yield f"{source} on {ranks}, {delay} steps", case


def context(rng: np.random.Generator, **_: Any) -> Iterator[Case]:
    """Rows that ranks receive in all; loads stay within 2 %."""
    documents = log("documents")
    for power, ranks in ((17, 8), (17, 64), (19, 16), (19, 64)):
        for _ in range(3):
            drawn = documents[rng.integers(len(documents), size=2**power // 100)]
            stop = int(np.searchsorted(np.cumsum(drawn), 2**power))
            pack = np.append(drawn[:stop], 2**power - int(drawn[:stop].sum()))
            pack = pack[pack > 0]

            def case(pack: np.ndarray = pack, ranks: int = ranks) -> Answer:
                found = solvers.context_shards(pack, ranks)
                return {"value": int(found.total_received), "bound": int(found.lower_bound)}

            yield f"{2 ** (power - 10)}K on {ranks}", case


def packs(rng: np.random.Generator, **_: Any) -> Iterator[Case]:
    for source, cap, n in itertools.product(("mix", "documents", "lognormal"), (8192, 32768), (2000, 10_000)):
        sizes = np.minimum(lengths(source, n, rng), cap)

        def case(sizes: np.ndarray = sizes, cap: int = cap) -> Answer:
            found = solvers.pack(sizes, cap)
            return {"value": int(found.num_groups), "bound": int(found.lower_bound)}

        yield f"{source} {n} into {cap}", case


MANY, FEW = [(512, 8), (1024, 64), (4096, 64)], [(8, 2), (12, 4), (24, 8), (40, 8), (64, 16), (128, 16)]
FAMILIES: dict[str, Callable[..., Iterator[Case]]] = {
    "free": partial(shares, equal_counts=False),
    "equal counts": partial(shares, equal_counts=True),
    "rules, many items": partial(rules, shapes=MANY, tight=False),
    "rules, few items": partial(rules, shapes=FEW, tight=True),
    "shared prompts": prompts,
    "near home": partial(near_home, limit="free"),
    "near home, equal counts": partial(near_home, limit="equal"),
    "near home, token cap": partial(near_home, limit="cap"),
    "two phases": two_phases,
    "micro-batches, micro_batch": partial(micro_batches, sync="micro_batch"),
    "micro-batches, step": partial(micro_batches, sync="step"),
    "micro-batches, pipeline": partial(micro_batches, sync="pipeline"),
    "micro-batches near home": micro_batches_near_home,
    "pipelines": pipelines,
    "gaps": gaps,
    "sequence groups": sequence_groups,
    "long and short": long_short,
    "across steps": across_steps,
    "context shards": context,
    "packs": packs,
}


def every(names: list[str], seed: int, draws: int, stop_at: str) -> Iterator[tuple[str, Case]]:
    """All cases of these families, the same on both sides: a family's draw has a generator of its own."""
    for name, draw in itertools.product(names, range(draws)):
        rng = np.random.default_rng([seed, list(FAMILIES).index(name), draw])
        for label, case in FAMILIES[name](rng, stop_at=stop_at):
            yield name, (label, case)


def measured(case: Callable[[], Answer]) -> Answer:
    """Run it twice, as the first run may compile; milliseconds of this process's processors are of the better."""
    spent, found = [], {}
    for _ in range(2):
        started = time.process_time()
        try:
            found = case()
        except solvers.SolverError as error:  # an infeasible problem among them
            found = {"error": f"{type(error).__name__}: {error}"[:200]}
        spent.append(1e3 * (time.process_time() - started))
    return found | {"ms": min(spent)}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not get between the answers
    compile_at_once()
    names, seed, draws, stop_at = json.loads(sys.argv[1])
    for name, (label, case) in every(names, seed, draws, stop_at):
        if not sys.stdin.readline():
            return
        out.write(json.dumps({"family": name, "case": label, **measured(case)}) + "\n")
        out.flush()
    sys.stdin.readline()  # who asks must find this process alive
    out.write("null\n")
    out.flush()


if __name__ == "__main__":
    main()
