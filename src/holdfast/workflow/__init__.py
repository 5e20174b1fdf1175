"""Workflows: async functions whose steps are recorded, so that a run survives the process that drives it."""

from .context import Context, StepInfo, current_run, current_step
from .context_children import ChildHandle
from .context_requests import Approval, UpdateRequest
from .continuing import ContinueAsNew
from .definition import Retry, Step, Workflow, step, workflow
from .engine import Engine, RunHandle
from .entries import RunEntry
from .history import RunHistory
from .history_check import ReplayReport
from .limits import Admission, Concurrency, Rate
from .purging import PurgeReport
from .queries import BlockInfo, HeartbeatInfo, LimitCancelInfo, RunInfo, RunsPage
from .replay_locks import RunLease
from .requests import ApprovalsPage, OpenApproval
from .stream_writers import StreamWriter
from .streams import StreamItem

__all__ = [
    "Admission",
    "Approval",
    "ApprovalsPage",
    "BlockInfo",
    "ChildHandle",
    "Concurrency",
    "Context",
    "ContinueAsNew",
    "Engine",
    "HeartbeatInfo",
    "LimitCancelInfo",
    "OpenApproval",
    "PurgeReport",
    "Rate",
    "ReplayReport",
    "Retry",
    "RunEntry",
    "RunHandle",
    "RunHistory",
    "RunInfo",
    "RunLease",
    "RunsPage",
    "Step",
    "StepInfo",
    "StreamItem",
    "StreamWriter",
    "UpdateRequest",
    "Workflow",
    "current_run",
    "current_step",
    "step",
    "workflow",
]
