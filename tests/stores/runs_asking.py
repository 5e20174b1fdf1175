"""Short functions for commands about runs, and for everything that a Redis has stored of them."""

from __future__ import annotations

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.runs import record as rule
from holdfast.rules.runs.outcomes import Started, WorkerRegistered
from holdfast.testing.builders import ME, SECOND
from holdfast.testing.suite.runs import TYPES, start


def lease(worker="w.1", seconds=60):
    return c.Acquire(key=rule.worker_key(worker), id=worker, label=ME, kind="worker", ttl=round(seconds * SECOND))


def add_worker(connection, worker="w.1", *types, seconds=60):
    register_worker = r.RegisterWorker(worker=worker, name=f"worker {worker}", types=types or ("order",))
    assert isinstance(connection.execute([lease(worker, seconds), register_worker])[1], WorkerRegistered)
    return worker


def ask(connection, command, kind):
    (outcome,) = connection.execute([command])
    assert isinstance(outcome, kind), outcome
    return outcome


def driven(connection, run="r", **more):
    """A run that its worker drives."""
    return ask(connection, start(run, worker="w.1", **more), Started).run


def claim(worker="w.1", **more):
    return r.ClaimRuns(worker=worker, types=TYPES, **more)


def everything(server, base):
    """Everything that is stored under a namespace, byte for byte."""
    look = {
        "string": server.get,
        "hash": server.hgetall,
        "list": lambda name: server.lrange(name, 0, -1),
        "set": server.smembers,
        "zset": lambda name: server.zrange(name, 0, -1, withscores=True),
    }
    return {
        name.removeprefix(base): look[server.type(name)](name) for name in server.keys("*") if name.startswith(base)
    }


def by_the_rules(*_, **__):
    """A replacement of `RedisSource.read` that fails: the fast path must have decided."""
    raise AssertionError("this was left to the rules")
