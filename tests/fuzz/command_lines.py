"""Random command lines: every command with legal values, values at a border, and values that cannot be."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 24
Random = np.random.Generator


def write_files(folder: Path) -> None:
    """Write the files that command lines name: logs, steps, a cluster, a model, and things that are none of these."""
    rng = np.random.default_rng(3)
    tokens, patches = rng.integers(10, 60, ROWS), rng.integers(0, 9, ROWS)
    columns: dict[str, Any] = {"tokens": tokens, "patches": patches, "key": np.arange(ROWS) // 2 % 5}
    columns |= {"ranks": [[0, 1, 2, 3]] * ROWS, "images": [rng.integers(1, 9, k % 3).tolist() for k in range(ROWS)]}
    pq.write_table(pa.table(columns), folder / "log.parquet")
    lines = [f"{t},{p}" for t, p in zip(tokens, patches, strict=True)]
    (folder / "log.csv").write_text("\n".join(["tokens,patches", *lines]) + "\n")
    (folder / "log.jsonl").write_text("".join(json.dumps({"duration": int(t) / 10}) + "\n" for t in tokens))
    np.save(folder / "log.npy", tokens)
    (folder / "bad.csv").write_text("tokens\n1\n-2\n")
    (folder / "huge.csv").write_text(f"tokens\n{2**62}\n{2**62}\n1\n1\n")
    (folder / "empty.csv").write_text("")
    steps = [f"{k},{100 * k + j},{k * 0.5 + 1}" for k in range(1, 30) for j in range(3)]
    (folder / "steps.csv").write_text("\n".join(["step,length,seconds", *steps]) + "\n")
    (folder / "curve.csv").write_text("tokens,flops_per_second\n100,1e14\n1000,4e14\n")
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "folder").mkdir()


@dataclass(frozen=True)
class Words:
    """Values of an option: those that are legal by themselves, and those at a border or beyond it."""

    legal: tuple[Any, ...]
    odd: tuple[Any, ...] = ()

    def drawn(self, rng: Random, oddness: float) -> str:
        """Draw one; an odd one with this probability."""
        values = self.odd if self.odd and rng.random() < oddness else self.legal
        return str(values[rng.integers(len(values))])


def _of(*legal: Any, odd: tuple[Any, ...] = ("no", "", "x=", "\x1b[31m")) -> Words:
    return Words(legal, odd)


ODD_COUNTS = (0, -1, 2**31, 10**12, 2**63, "x", "1.5", "", "nan")
ODD_REALS = (0, -1, "inf", "nan", "-inf", "1e-300", "1e300", "1/3", "x", "")
COUNTS, FEW = _of(1, 2, 3, 4, 6, 8, odd=ODD_COUNTS), _of(1, 2, odd=ODD_COUNTS)
AMOUNTS = _of(200, 400, 1000, 10**10, odd=(1, 5, 30, 2**62, *ODD_COUNTS))
CAPS = _of(60, 100, 200, 1000, odd=(1, 30, 2**62, *ODD_COUNTS))
REALS = _of(0.001, 0.01, 0.1, 0.5, odd=ODD_REALS)
BUDGETS = _of(0.0001, 0.001, 0.01, 0.1, "1e9", odd=ODD_REALS)
PER_RANK = _of(
    "[1,1]", "[1,2]", "[1,1,2,2]", "[4,1,1,4]",
    odd=("[0,0]", "3", "[1,x]", "", "[,]", "[1,1,1,1,1,1]", f"[{2**62},{2**62}]", "[[1]]", "{a=1}", "[1"),
)  # fmt: skip
FLAGS = _of("true", "false", odd=("yes", 1, "", "True"))
COSTS = _of(
    "linear",
    "linear:a=3",
    "quadratic:a=24576,b=1",
    "quadratic:b=1,a=2",
    "padded",
    "padded:a=3,b=1",
    "flops:qwen2-7b",
    "convolution:a=3,c=2",
    "convolution:a=3,c=1,b=1,p=2",
    odd=(
        "quadratic",
        "quadratic:a=x,b=1",
        "quadratic:a=1,a=2",
        "linear:a=0",
        "linear:a=99999999999999999999",
        "cubic",
        "padded:b=1",
        "convolution:a=1,c=0",
        "convolution:a=1,c=1,p=9",
        "flops:",
        "flops:nowhere.json",
        "",
        ":",
        "flops:config.json",
        "linear:",
        "quadratic:a=-1,b=1",
        "no=linear",
        f"quadratic:a={2**62},b={2**62}",
    ),
)
LENGTHS = _of("tokens", odd=("tokens+patches", "patches", "duration", "length", "tokens+", "tokens+tokens", "no", ""))
METHODS = _of("auto", "lpt", "karmarkar_karp", "exact", odd=("padded", "mixed", "no"))
OUTS = _of(
    "p.parquet", "parts/", "folder/p.parquet", odd=("folder/", "no/p.parquet", "", "p.parquet/", "bad.csv/p", ".")
)

Option = tuple[float, str, Words | None]  # how often, its name, and its values (None: a flag)
BATCHES: list[Option] = [
    (0.2, "home", _of("contiguous", "strided")),
    (0.2, "drop_last", FLAGS),
    (0.2, "plan.eps", REALS),
    (0.2, "plan.placement", _of("relocate", "rearrange", "any")),
    (0.2, "plan.method", METHODS),
    (0.4, "plan.time_budget", BUDGETS),
    (0.4, "--ranks-per-node", _of(1, 2, odd=(4, 3, 0, -2))),
    (0.05, "plan.group_size", _of(1, 2, odd=(3, 0, "x"))),
    (0.05, "epochs", FEW),
    (0.05, "shuffle", _of(0, 7, odd=(-1, "x", ""))),
    (0.02, "deferral.window", _of(0, 1, 2, "[0,1]", odd=(-1, "x", "[1]"))),
]
ONE: list[Option] = [(1.0, "--length", LENGTHS), (0.3, "--cost", COSTS)]
CONSTRAINTS: list[Option] = [
    (0.15, "phase.P.equal_counts", FLAGS),
    (0.15, "phase.P.max_tokens_per_rank", AMOUNTS),
    (0.1, "phase.P.min_samples_per_rank", FEW),
    (0.1, "phase.P.max_samples_per_rank", _of(6, 9, 30, odd=ODD_COUNTS)),
    (0.05, "phase.P.rank_speeds", PER_RANK),
    (0.05, "phase.P.initial_loads", PER_RANK),
    (0.05, "phase.P.keep_together", _of("key")),
    (0.05, "phase.P.allowed_ranks", _of("ranks")),
    (
        0.1,
        "phase.P.caps",
        _of(
            "{patches=90}", "{tokens=400}", '{"tokens+patches"=999}', "{patches=90,tokens=400}",
            odd=("{patches=0}", "{no=3}", '{""=3}', "patches", "{patches=1}", "{}", "{patches=1,patches=2}", "{"),
        ),
    ),
]  # fmt: skip
CUTS: list[Option] = [
    (0.9, "cut.tokens", CAPS),
    (0.1, "cut.kind", _of("micro_batches", odd=("whole_shares", "pipelines", "sequence_groups", "no", ""))),
    (0.3, "cut.count", _of(3, 5, "fewest", odd=(1, 0, 10**8, "x", "-1", ""))),
    (0.4, "cut.sync", _of("micro_batch", "step", "pipeline")),
    (0.2, "cut.at_least", FEW),
    (0.2, "cut.multiple_of", FEW),
    (0.1, "cut.pipeline_stages", COUNTS),
    (0.7, "cut.allow_empty", FLAGS),
    (0.4, "cut.over_long", _of("error", "own", odd=("drop",))),
    (0.05, "cut.degrees", _of("[1,2]", odd=("[0]", "2", "[]", "[1,1]"))),
    (0.05, "cut.stages", _of("{all=2}", odd=("{a=0}", "2", "{}", "{b=9}"))),
]
SEVERAL: list[Option] = [
    (
        1.0,
        "phase.a.length",
        _of("patches", "images", odd=("no", "", "tokens", "qwen2vl_patches(tokens,patches)", "no(x)")),
    ),
    (1.0, "phase.b.length", _of("tokens+patches", "tokens")),
    (0.2, "phase.a.outputs", _of("patches", odd=("images", "tokens", "no"))),
    (0.2, "phase.b.own", _of("tokens", odd=("no", "b"))),
    (0.2, "phase.a.bytes_in", _of(4, odd=("x", 99999999999999))),
    (0.1, "phase.c.bytes_out", _of(4, odd=("x", 99999999999999))),
    (0.2, "plan.mode", _of("separate", "joint")),
    (0.1, "phase.a.every_rank_nonempty", FLAGS),
    (0.1, "phase.b.cost", COSTS),
    (0.1, "phase.a.cost", COSTS),
]
ODD_KEYS: list[Option] = [
    (0.02, name, _of(1, "x", "{a=1}", "[1]", ""))
    for name in ("cut", "phase", "plan", "phase.all", "phase.b.", ".", "cuts.tokens", "cut.tokens.x", "plan.epss", "")
]
COMPARED: list[Option] = [
    (0.4, "--strategies", _of("orchestrated", "as_sampled,llm_only", "llm_only")),
    (0.5, "--steps", FEW),
]
PICTURES: list[Option] = [
    (0.08, "--html", _of("p.html", odd=("no/p.html", "p.txt", "folder", ""))),
]
ON: list[Option] = [(1.0, "--cluster", _of("h100", "a100", odd=("no", "config.json", "no.json", "")))]
MODELED: list[Option] = [
    (0.1, "gpus_per_rank", FEW),
    (0.2, "--efficiency", REALS),
    (0.2, "--overlap", REALS),
    (0.2, "--waits", _of("phase", "step")),
    (0.2, "--checkpointing", None),
]
MODELS = {
    False: [
        (1.0, "--model", _of("qwen2-7b", "llama-3-8b", odd=("no", "config.json", "config.json#llm", "x="))),
        (0.1, "phase.all.pieces", _of(4, odd=(0, "x", "a=4"))),
        (0.1, "--throughput", _of("curve.csv", odd=("no.csv", "log.csv"))),
    ],
    True: [
        (1.0, "phase.a.model", _of("internvit-300m", odd=("no", "a", ""))),
        (1.0, "phase.b.model", _of("qwen2-7b")),
    ],
}
FITTED: list[Option] = [
    (0.4, "--skip", _of(0, 1, 5, odd=(100, -1, "x"))),
    (0.3, "--force", None),
]
LOGS = _of(
    "log.parquet",
    "log.parquet",
    "log.csv",
    "log.parquet",
    odd=("log.jsonl", "log.npy", "bad.csv", "huge.csv", "empty.csv", "no.csv", "folder", "", "steps.csv"),
)
PLANS, STEPS = (
    _of("done.parquet", "done", "saved.parquet", odd=("log.csv", "no", "folder")),
    _of("steps.csv", odd=("log.csv", "no.csv", "folder")),
)
SHAPE: list[Option] = [
    (1.0, "--ranks", _of(2, 2, 4, 4, 4, 6, odd=ODD_COUNTS)),
    (1.0, "--batch-per-rank", _of(2, 3, 4, 6, 24, odd=ODD_COUNTS)),
]


@dataclass(frozen=True)
class Typist:
    """Draws words: `oddness` is how often a value is odd, `richness` how many options there are."""

    rng: Random
    oddness: float
    richness: float

    def options(self, options: list[Option], rich: bool = True, phase: str = "all") -> list[str]:
        """Draw some options, each with a value, and some keys, of this phase where they name none."""
        words: list[str] = []
        for often, name, values in options:
            if often < 1 and self.rng.random() >= often * (self.richness if rich else 1):
                continue
            value = "" if values is None else values.drawn(self.rng, self.oddness)
            if name.startswith("--"):
                words += [name] if values is None else [name, value]
            else:
                words += ["--set", f"{name.replace('.P.', f'.{phase}.')}={value}"]
        return words

    def one(self, words: Words) -> str:
        """Draw a word."""
        return words.drawn(self.rng, self.oddness)

    def planned(self, several: bool) -> list[str]:
        """Draw a log and how it is planned: with few options or with many, as few keep to one another."""
        words = [self.one(LOGS), *self.options(SHAPE), *self.options(BATCHES)]
        words += self.options(SEVERAL if several else ONE)
        words += self.options(CONSTRAINTS, phase="b" if several else "all")
        words += self.options(CUTS) if self.rng.random() < 0.3 else []
        return words + (self.options(ODD_KEYS) if self.oddness else [])

    def line(self) -> list[str]:
        """Draw a command line."""
        rng, several = self.rng, bool(self.rng.random() < 0.35)
        command = str(rng.choice(["plan", "plan", "plan", "simulate", "report", "fit"]))
        words = [command]
        if command == "plan":
            words += self.planned(several)
            words += ["--out", self.one(OUTS)] if rng.random() < 0.5 else []
        elif command == "simulate":
            words += self.planned(several) + self.options(ON + MODELED + MODELS[several] + COMPARED)
            words += self.options(PICTURES, rich=False)
        elif command == "report":
            words += [self.one(PLANS), *self.options(PICTURES, rich=False)]
            words += self.options([(0.1, "--log", _of("log.csv", odd=("log.parquet", "no.csv", "folder")))])
        else:
            words += [self.one(STEPS), *self.options(FITTED)]
        return words + self.options([(0.3, "--json", None)], rich=False)


def command_line(rng: Random) -> list[str]:
    """Draw one command line; some lack a word or have one twice."""
    words = Typist(rng, float(rng.choice([0, 0, 0.03, 0.2])), float(rng.choice([0.3, 1.0, 1.5]))).line()
    if rng.random() < 0.04:
        at = int(rng.integers(len(words)))
        words[at : at + 1] = [words[at]] * 2 * int(rng.integers(0, 2))
    return words
