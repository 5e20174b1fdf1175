"""The fence: the resource that is written to refuses writers that a newer holder has replaced.

A lock excludes other callers until its lease ends. A process that was paused for longer than its lease does not
detect this end. Its token shows that it is late. `guard` (and `guard_async`) checks the token within the database
transaction that writes, `fenced_replace` in the step in which a file is replaced, `fenced_set` and `FencedScript` in
one atomic step on Redis, `fenced_update` in one update of a document of MongoDB, `fenced_put` in the condition of a
write on DynamoDB. A token at or above the highest floor that the resource has seen is accepted. Every lower token
raises `StaleToken` before anything is written. Values that are read in order to be changed must be read behind the
fence, too: after `guard` in the same transaction, with `fenced_read` or `fenced_get`, by a fenced script, or after an
empty `fenced_update`.
"""

from .dynamodb import FenceCondition, fence_condition, fenced_get, fenced_put
from .files import fenced_read, fenced_replace
from .guards import guard, guard_async
from .mongodb import fenced_update, fenced_update_async
from .redis import AsyncFencedScript, FencedScript, fenced_set, fenced_set_async
from .tokens import Fenced

__all__ = [
    "AsyncFencedScript",
    "FenceCondition",
    "Fenced",
    "FencedScript",
    "fence_condition",
    "fenced_get",
    "fenced_put",
    "fenced_read",
    "fenced_replace",
    "fenced_set",
    "fenced_set_async",
    "fenced_update",
    "fenced_update_async",
    "guard",
    "guard_async",
]
