"""The options that several commands share, with their help texts."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import click

from balancer.cli.parser import NamedFlag
from balancer.cli.step_options import step_option
from balancer.cost import EXCHANGES
from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.offline.engines import ENGINES
from balancer.problem.batch import HOMES
from balancer.problem.cluster import CLUSTERS
from balancer.problem.cuts.micro_batches import OVER_LONG
from balancer.problem.settings import EPS, METHODS, MODES, PLACEMENTS, STOP_AT, as_tolerance
from solvers.packing import SYNCS

_SEVERAL: dict[str, Any] = {"multiple": True}


class Tolerance(click.ParamType):  # type: ignore[type-arg] # takes no argument before click 8.2
    """A share below 1, such as 0.001 or 0.1%."""

    name = "tolerance"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | Fraction:
        """Read a number or a percentage; one that no float is stays exact."""
        text = str(value).replace(" ", "")
        try:
            # Only the form is tried: the number is read exactly below.
            float(text.removesuffix("%"))
        except ValueError:
            self.fail(f"must be a number, got {value!r}", param, ctx)
        return as_tolerance(text)


# In the path of the copy, so that messages about it are told from those about a user's own file `stdin`.
_STAGED = "seqbalancer-log-"


def without_staged(message: str) -> str:
    """Return what is said of standard input under that name, not under that of its copy."""
    return re.sub(rf"[^\s']*{_STAGED}[^\s/\\]*[/\\]stdin", "standard input", message)


def _log_of(context: click.Context, _: click.Parameter, paths: tuple[str, ...]) -> LogPath:
    """Return the path of a log, or several, as a shell makes them of a pattern; - stands for standard input."""
    found = tuple(_standard_input(context) if path == "-" else path for path in paths)
    # A single path stays a text: by this, commands tell one log from several.
    return found[0] if len(found) == 1 else found


def _standard_input(context: click.Context) -> str:
    """Copy standard input to a file, which is there as long as the command runs: a log is read more than once."""
    stream = None if sys.stdin is None else getattr(sys.stdin, "buffer", None)
    # At a terminal the command would wait for words without saying so.
    if stream is None or stream.isatty():
        raise InputError("-: there is no standard input to read a log from: pipe one into the command")
    folder = context.with_resource(tempfile.TemporaryDirectory(prefix=_STAGED))
    path = os.path.join(folder, "stdin")
    with open(path, "wb") as file:
        shutil.copyfileobj(stream, file)
    return path


log_argument = click.argument("log", nargs=-1, required=True, type=click.Path(), metavar="LOG...", callback=_log_of)
"""The log: one path, several, or - for standard input."""


def add_options(command: Any, options: Iterable[Any]) -> Any:
    """Decorate a command with options, the first of them listed first."""
    # The last decorator is applied first, and click lists the option that was applied last first.
    for option in reversed(tuple(options)):
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


cluster_option = click.option(
    "--cluster", required=True, metavar="C", help=f"{' | '.join(CLUSTERS)} | a JSON file of a cluster's fields."
)

module_options: tuple[Any, ...] = (
    click.option(
        "--model", "models", metavar="[NAME=]MODEL", **_SEVERAL,
        help="Model of every phase: qwen2-7b or another known name, or the path of a config.json[#module].",
    ),
    click.option(
        "--pieces", metavar="[NAME=]L", **_SEVERAL,
        help="Items are cut into pieces of L elements, such as tiles; attention stays within them.",
    ),
)  # fmt: skip

rate_options: tuple[Any, ...] = (
    click.option(
        "--efficiency", type=float, default=0.5, show_default=True, metavar="E",
        help="Fraction of peak FLOP/s that computing reaches; MFU is proportional to it.",
    ),
    click.option(
        "--throughput", "curves", metavar="[NAME=]FILE.csv", **_SEVERAL,
        help="Measured FLOP/s of a GPU by tokens, instead of --efficiency; for layouts by tp too.",
    ),
    click.option(
        "--overlap", type=float, default=0.0, show_default=True, metavar="F",
        help="Assumed fraction of every exchange that overlaps with computing.",
    ),
)  # fmt: skip


def engine_options(command: Any) -> Any:
    """Add who does the work."""
    options = (
        click.option(
            "--engine", metavar="E",
            help=f"How the work runs: {' | '.join(ENGINES)} [default: processes for a long log, else serial].",
        ),
        click.option(
            "--jobs", type=click.IntRange(min=1), metavar="N", help="With processes, how many [default: one a core]."
        ),
        click.option(
            "--address", metavar="A", help="With ray, the cluster, such as auto [default: one is started here]."
        ),
    )  # fmt: skip
    return add_options(command, options)


_length_option = click.option(
    "--length",
    metavar="COL[+COL...]",
    help="Columns whose sum is the length [default: the only integer one, if it looks like lengths].",
)

_cost_option = click.option(
    "--cost", "costs", metavar="[NAME=]SPEC", **_SEVERAL,
    help="linear | quadratic:a=24576,b=1 | attention:a=24576,full=8,window1024=40 | padded | "
    "convolution:a=24576,c=100 | flops:qwen2-7b | flops:config.json | flexsp-7b-a100 "
    "[default: linear]; NAME=SPEC: of that phase.",
)  # fmt: skip

_budget_option = click.option(
    "--time-budget",
    type=float,
    default=0.01,
    show_default=True,
    metavar="S",
    help="Solver work in seconds, per step and phase; counted, not timed, except with exact.",
)


_method_option = click.option(
    "--method", default="auto", show_default=True, metavar="M", help=f"One of {', '.join(METHODS)}."
)


def _batch_options(command: Any) -> Any:
    """Add how a log becomes global batches."""
    options = (
        step_option,
        click.option("--ranks", type=int, required=True, metavar="N", help="Data-parallel ranks."),
        click.option(
            "--ranks-per-node", type=int, metavar="C",
            help="Ranks on each node [default: all ranks on one; simulate: as many as the cluster has].",
        ),
        click.option(
            "--batch-per-rank", type=int, metavar="B",
            help="Samples a rank draws for each step.  [required, unless --step-tokens]",
        ),
        click.option(
            "--home", default="contiguous", show_default=True, metavar="H",
            help=f"How the loader deals rows to ranks: {' | '.join(HOMES)}",
        ),
        click.option("--drop-last", is_flag=True, help="Leave out a last, short step."),
        click.option(
            "--placement", default="relocate", show_default=True, metavar="P",
            help=f"How plans choose ranks: {' | '.join(PLACEMENTS)}",
        ),
        click.option(
            "--eps", type=Tolerance(), default=EPS, show_default=True, metavar="E",
            help="With relocate, how much larger the makespan may be so that less moves: 0.001 or 0.1%.",
        ),
        click.option(
            "--stop-at", default=STOP_AT, show_default=True, metavar="G",
            help="The proven gap at which the search for groups ends; 0: it goes on for the optimum.",
        ),
    )  # fmt: skip
    return add_options(command, options)


class _Tokens(click.ParamType):  # type: ignore[type-arg] # takes no argument before click 8.2
    """A number of tokens, 4M or 4000000."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a whole number, with K, M or G for thousands, millions or billions."""
        found = re.fullmatch("([0-9]{1,18})([KMG]?)", str(value).strip())
        if found is None:
            self.fail(f"must be a whole number, such as 4194304 or 4M (4,000,000), got {value!r}", param, ctx)
        # Decimal, as sizes of batches are quoted: 4M is not 2**22.
        return int(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[found[2]]


def _deferral_options(command: Any) -> Any:
    """Add which samples form a step."""
    options = (
        click.option(
            "--step-tokens", type=_Tokens(), metavar="T",
            help="Instead of --batch-per-rank: a step closes before it would hold more than T tokens, such as 4M.",
        ),
        click.option(
            "--defer", type=int, metavar="D",
            help="A sample may run up to D steps early or late, so that long ones share steps.",
        ),
        click.option("--defer-early", type=int, metavar="D", help="Up to D steps early, instead of --defer."),
        click.option("--defer-late", type=int, metavar="D", help="Up to D steps late, instead of --defer."),
        click.option(
            "--step-tokens-within",
            metavar="SHARE",
            help="With --defer, how far a step's tokens may be off [default: 5%]."
        ),
        click.option(
            "--step-counts", metavar="exact|any|SHARE",
            help="With --defer, samples of a step: as many as without, any number, or off by a share [default: exact, "
            "with --step-tokens any].",
        ),
        click.option(
            "--most-long-share", metavar="SHARE",
            help="With --defer, the most of a step's tokens that long samples may have, those over 1/8 of a rank's.",
        ),
        click.option("--stage", metavar="COL", help="With --defer, no sample runs across a change of COL."),
    )  # fmt: skip
    return add_options(command, options)


def _phase_options(command: Any) -> Any:
    """Add what names phases and says how they are planned together."""
    options = (
        click.option(
            "--phase", "phases", metavar="NAME=COL[+COL...]|F(COL,...)", **_SEVERAL,
            help="A module and the columns whose sum is its length, or, of several items in a sample, a function of "
            "columns of lists: lengths(clips), qwen2vl_patches(widths,heights). Give all in order; encoders feed the "
            "last.",
        ),
        click.option(
            "--outputs", metavar="NAME=COL|F(COL,...)", **_SEVERAL,
            help="How much each item puts out [default: its length].",
        ),
        click.option(
            "--own", metavar="NAME=COL|F(COL,...)", **_SEVERAL,
            help="In the last phase, what each sample adds itself [default: its length minus what it is fed].",
        ),
        click.option(
            "--bytes", "byte_sizes", metavar="[NAME=]IN[,OUT]", **_SEVERAL,
            help="Bytes of one element, as input and as output [default: 1].",
        ),
        click.option(
            "--sequence-parallel", metavar="NAME=D[,M]", **_SEVERAL,
            help="Groups of D ranks share an encoder's long items, each item on all or some of them; a rank's share is "
            "padded to a multiple of M, the elements that make an output [default: 1].",
        ),
        click.option("--every-rank-nonempty", metavar="NAME", **_SEVERAL, help="Every rank gets an item, if possible."),
        click.option(
            "--mode", metavar="M", help=f"How encoders are balanced: {' | '.join(MODES)} [default: separate]."
        ),
        click.option(
            "--encoders", metavar="W",
            help="With micro-batches, encoders compute an item in the slot of its sample (slot), or all before the "
            "first slot (step) [default: slot].",
        ),
        click.option("--group-size", type=int, metavar="G", help="Plan and exchange only within groups of G ranks."),
    )  # fmt: skip
    return add_options(command, options)


def _constraint_options(command: Any) -> Any:
    """Add what every rank's share of a phase must keep to: of the one that is named, else of the last."""
    options = (
        click.option(
            "--equal-counts", cls=NamedFlag,
            help="Every rank gets equally many samples, within one; with phases, items of NAME [default: the last].",
        ),
        click.option(
            "--max-tokens-per-rank", metavar="[NAME=]T", **_SEVERAL,
            help="Cap on a rank's sum of lengths; with phases, in NAME [default: the last], as for all options below.",
        ),
        click.option("--min-samples-per-rank", metavar="[NAME=]K", **_SEVERAL, help="At least K samples per rank."),
        click.option(
            "--max-samples-per-rank", metavar="[NAME=]K", **_SEVERAL, help="At most K samples per rank."
        ),
        click.option(
            "--cap", "caps", metavar="[NAME=]COL[+COL...]=MAX", **_SEVERAL,
            help="Cap on a rank's sum of another quantity; may be given several times.",
        ),
        click.option(
            "--keep-together", metavar="[NAME=]COL", **_SEVERAL, help="Rows with equal values in COL run on one rank."
        ),
        click.option(
            "--prefix", metavar="[NAME=]COL", **_SEVERAL,
            help="Rows with equal values in COL begin with one prompt, which a rank computes once.",
        ),
        click.option(
            "--prefix-length", metavar="[NAME=]COL", **_SEVERAL,
            help="COL is the length of each row's prompt, part of its own.",
        ),
        click.option(
            "--allowed-ranks", metavar="[NAME=]COL", **_SEVERAL, help="COL lists the ranks on which a row may run."
        ),
        click.option(
            "--rank-speeds", metavar="[NAME=]S,S,...", **_SEVERAL,
            help="Work units that each rank does in a unit of time, as integers.",
        ),
        click.option(
            "--initial-loads", metavar="[NAME=]L,L,...", **_SEVERAL, help="Work units that each rank has already."
        ),
    )  # fmt: skip
    return add_options(command, options)


def _micro_batch_options(command: Any) -> Any:
    """Add how a rank's share is cut into micro-batches."""
    options = (
        click.option("--micro-batch-tokens", type=int, metavar="T", help="Cut shares into micro-batches of at most T."),
        click.option(
            "--sync", metavar="S", default=None,
            help=f"Ranks wait for each other in every slot, once a step or along a pipeline: {' | '.join(SYNCS)} "
            "[default: micro_batch].",
        ),
        click.option("--micro-batches", metavar="K", help="How many per rank, or 'fewest' [default: the fastest]."),
        click.option("--min-micro-batches", type=int, metavar="K", help="At least K per rank [default: 1]."),
        click.option("--micro-batches-multiple-of", type=int, metavar="K", help="A multiple of K [default: 1]."),
        click.option(
            "--pipeline-stages", type=int, metavar="P",
            help="Number of stages of a pipeline, if nothing more is known [default: 1].",
        ),
        click.option(
            "--stages", metavar="N|NAME[+NAME]=N,...",
            help="Stages that each phase is cut into, in order: vision+audio=1,llm=3 puts both encoders into the first "
            "of four. Steps are then run exactly (1F1B), and the order of micro-batches is planned. With --cost "
            "NAME=flops:MODEL for all phases stages hold whole layers, else equal parts of a phase's cost.",
        ),
        click.option(
            "--layout", "layouts", metavar="FILE.json", **_SEVERAL,
            help="A layout, such as configure --out writes, instead of --stages and its options. simulate takes "
            "several, and compares the step times of the same samples. With --strategies orchestrated it takes one of "
            "mode before without pipeline devices, plans over its GPUs (--ranks), and simulates these plans.",
        ),
        click.option("--chunks", type=int, metavar="V", help="With --stages, stages on each device: interleaved 1F1B."),
        # None, not False, where a flag is not typed: then a step file's value stands.
        click.option("--recompute", is_flag=True, default=None, help="With --stages, backwards rerun the forward."),
        click.option("--frozen", metavar="NAME", **_SEVERAL, help="With --stages, a phase that is not trained."),
        click.option(
            "--tied", is_flag=True, default=None,
            help="With --stages, an op waits for the same op on all ranks, as with FSDP or experts across them.",
        ),
        click.option(
            "--in-flight-tokens", type=int, metavar="T",
            help="With --stages, the most tokens that a device holds between forwards and backwards.",
        ),
        click.option(
            "--allow-empty-micro-batches", is_flag=True, default=None, help="A micro-batch may hold nothing."
        ),
        click.option("--over-long", metavar="W", help=f"A row over T gets: {' | '.join(OVER_LONG)} [default: error]."),
    )  # fmt: skip
    return add_options(command, options)


def _sharing_options(command: Any) -> Any:
    """Add how ranks share rows, instead of micro-batches."""
    options = (
        click.option(
            "--group-degrees", metavar="D,D,...",
            help="Instead of micro-batches: groups of D ranks share rows, in every slot. --max-tokens-per-rank then "
            "caps the tokens of a rank in a slot; --micro-batches is the number of slots.",
        ),
        click.option(
            "--group-exchange", metavar="X",
            help=f"What a group's ranks exchange in attention: {' | '.join(EXCHANGES)} [default: ulysses].",
        ),
        click.option(
            "--context", type=int, metavar="G",
            help="Instead of micro-batches: G ranks share each pack of documents, token by token. --sync micro_batch "
            "or step says where replicas wait for each other; --micro-batches is the number of packs.",
        ),
        click.option("--pack-tokens", type=int, metavar="T", help="With --context, the most tokens of a pack."),
        click.option(
            "--masks", metavar="MASK=N,...",
            help="With --context, number of layers by mask, such as full=1,window1024=5 [default: from the cost].",
        ),
        click.option(
            "--context-block", type=int, metavar="N",
            help="With --context, documents are cut at multiples of N from their start [default: 128].",
        ),
    )  # fmt: skip
    return add_options(command, options)


def planning_options(command: Any) -> Any:
    """Add all that says how a log is planned."""
    # This is the order of the help. The option that opens each part of it is named in parser._HEADINGS.
    parts = (_batch_options, _deferral_options, _length_option, _cost_option, _phase_options, _constraint_options,
             _micro_batch_options, _sharing_options, _method_option, _budget_option)  # fmt: skip
    return add_options(command, parts)
