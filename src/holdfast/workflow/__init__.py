"""Workflows: async functions whose steps are recorded, so that a run survives the process that drives it."""

from .context import ChildHandle, Context, StepInfo, current_step
from .continuing import ContinueAsNew
from .definition import Retry, Step, Workflow, step, workflow
from .engine import Engine, RunHandle
from .history import RunHistory
from .history_check import ReplayReport
from .limits import Admission, Concurrency, Rate
from .purging import PurgeReport
from .queries import BlockInfo, LimitCancelInfo, RunInfo, RunsPage
from .replay_locks import RunLease
from .stream_writers import StreamWriter
from .streams import StreamItem

__all__ = [
    "Admission",
    "BlockInfo",
    "ChildHandle",
    "Concurrency",
    "Context",
    "ContinueAsNew",
    "Engine",
    "LimitCancelInfo",
    "PurgeReport",
    "Rate",
    "ReplayReport",
    "Retry",
    "RunHandle",
    "RunHistory",
    "RunInfo",
    "RunLease",
    "RunsPage",
    "Step",
    "StepInfo",
    "StreamItem",
    "StreamWriter",
    "Workflow",
    "current_step",
    "step",
    "workflow",
]
