"""Bin packing (:mod:`solvers.packing.bins`) and micro-batch schedules: one file per problem."""

from solvers.packing._arguments import MOST_BINS, slots_for
from solvers.packing._schedule_bounds import taken_tokens
from solvers.packing._schedule_types import SYNCS, ScheduleResult
from solvers.packing._shares_types import SharesResult
from solvers.packing.bins import PACKERS, pack
from solvers.packing.fill_sorted import fill_sorted
from solvers.packing.limits import BatchLimits
from solvers.packing.prefix_schedule import prefix_schedule_bound, schedule_with_prefixes
from solvers.packing.prices import Priced, price_tokens, rests_of_slots
from solvers.packing.schedule import schedule_micro_batches
from solvers.packing.shares import cut_shares
from solvers.packing.types import PackingResult

__all__ = [
    "MOST_BINS", "PACKERS", "SYNCS", "BatchLimits", "PackingResult", "Priced", "ScheduleResult", "SharesResult",
    "cut_shares", "fill_sorted", "pack", "prefix_schedule_bound", "price_tokens", "rests_of_slots",
    "schedule_micro_batches", "schedule_with_prefixes", "slots_for", "taken_tokens",
]  # fmt: skip
