"""What the command line calls the library's arguments: options."""

from collections.abc import Iterable

from balancer.problem.phases import CONSTRAINTS
from solvers.errors import Wording, braced

GIVEN_IN = "balancer.given_in"
"""Where a command's context keeps the words for values that a file has instead of options."""

OPTIONS = Wording({
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            *CONSTRAINTS, "ranks_per_node", "batch_per_rank", "epochs", "shuffle", "time_budget",
            "pipeline_stages",
            "over_long", "encoders", "overwrite", "group_size", "gpus_per_rank", "overlap",
            "efficiency",
            "stages", "chunks", "recompute", "frozen", "tied", "in_flight_tokens", "outputs", "own",
            "sequence_parallel", "allow_empty_micro_batches", "at_step",
            "step_tokens", "most_long_share", "defer", "stage",
            "eps", "stop_at", "placement", "price", "mode", "method", "steps", "jobs",
        )
    },
    "num_gpus": "--gpus", "batch": "--batch", "generators": "--generator", "gpus": "GPUs",
    "cut.sync": "--sync", "cut.tokens": "--micro-batch-tokens", "cut.at_least": "--min-micro-batches",
    "cut.multiple_of": "--micro-batches-multiple-of",
    "num_ranks": "--ranks", "num_groups": "--groups", "num_steps": "--steps", "cut.count": "--micro-batches",
    "num_slots": "--micro-batches", "cut.tokens_per_rank": "--max-tokens-per-rank", "caps": "--cap",
    "sequence_groups": "--group-degrees", "degrees": "--group-degrees", "exchange": "--group-exchange",
    "context_shards": "--context", "degree": "--context", "pack_tokens": "--pack-tokens", "masks": "--masks",
    "block": "--context-block",
    "exchange='ring'": "--group-exchange ring", "layout": "--stages", "layouts": "--layout",
    "cost of phases": "--cost", "piece": "--pieces",
    "early": "--defer-early", "late": "--defer-late", "tokens_within": "--step-tokens-within",
    "counts": "--step-counts", "batch_size": "--batch-per-rank",
    "models": "--model", "share_multiple_of": "--sequence-parallel NAME=D,M",
    "over_long='own'": "--over-long own", "cut.sync='pipeline'": "--sync pipeline",
    "encoders='step'": "--encoders step",
    "allow_empty=True": "--allow-empty-micro-batches", "mode='separate'": "--mode separate",
    "method='auto'": "--method auto", "method='exact'": "--method exact",
    "Topology(node_sizes=[...])": None,
})  # fmt: skip
"""A remedy that no option sets is left out: None."""


def of_layout(path: str, taken: Iterable[str] = ()) -> Wording:
    """Return what settings are called that a layout file stands for; `taken` are the keys besides its modules."""
    file = braced(path)
    found = dict.fromkeys(("stages", "layouts"), f"--layout {file}")
    found |= {"layout": f"{file}: pp of modules", "encoders='step'": f"mode 'before' in {file}"}
    for key in taken:
        found |= dict.fromkeys(_KEYS[key], f"{key} of {file}")
    return Wording(found)


_KEYS = {
    "micro_batches": ("cut.count", "num_slots"),
    "micro_batch_tokens": ("cut.tokens",),
}
