"""Pipelines: op orders, exact makespans, and micro-batches that fill and drain a pipeline fast."""

from solvers.pipeline.methods import PIPELINERS, USES_CLOCK
from solvers.pipeline.orders import OpOrder, gpipe, interleaved, one_f_one_b
from solvers.pipeline.run import PipelineRun, run
from solvers.pipeline.solver import schedule_pipeline
from solvers.pipeline.types import OutlierCut, PipelineCut, PipelineResult
from solvers.pipeline.verify import check_pipeline

__all__ = ["PIPELINERS", "USES_CLOCK", "OpOrder", "OutlierCut", "PipelineCut", "PipelineResult", "PipelineRun",
           "check_pipeline", "gpipe", "interleaved", "one_f_one_b", "run", "schedule_pipeline"]  # fmt: skip
