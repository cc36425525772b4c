"""Pipelines: op orders, exact makespans, micro-batches that fill and drain a pipeline fast, and work in its gaps."""

from solvers.pipeline.multiplex import multiplex, multiplexed_lower_bound, run_turns
from solvers.pipeline.multiplex_slots import schedule_multiplexed
from solvers.pipeline.orders import OpOrder, gpipe, interleaved, one_f_one_b
from solvers.pipeline.run import PipelineRun, run
from solvers.pipeline.solver import schedule_pipeline
from solvers.pipeline.types import (
    MultiplexedResult,
    MultiplexResult,
    PipelineCut,
    PipelineRequest,
    PipelineResult,
    TaskRequest,
)
from solvers.pipeline.verify import check_multiplex, check_multiplexed, check_pipeline

__all__ = ["MultiplexResult", "MultiplexedResult", "OpOrder", "PipelineCut", "PipelineRequest",
           "PipelineResult", "PipelineRun", "TaskRequest", "check_multiplex", "check_multiplexed",
           "check_pipeline", "gpipe", "interleaved", "multiplex", "multiplexed_lower_bound", "one_f_one_b", "run",
           "run_turns", "schedule_multiplexed", "schedule_pipeline"]  # fmt: skip
