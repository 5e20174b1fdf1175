"""A decision is written to a relational store only if everything that it depends on is as it was read.

In each case another client changes one thing between the read and the write. Then the rules decide again: the answer
is the one that they give when the other client came first.
"""

from __future__ import annotations

import pytest
from providers import BY_SQL, PROVIDERS

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.runs.outcomes import RunSeen, Started
from holdfast.stores.sql.source import SqlSource
from holdfast.testing.builders import SECOND
from holdfast.testing.suite.runs import signal, start
from stores.runs_asking import add_worker, ask
from stores.swap_cases import CASES


@pytest.fixture(params=BY_SQL)
def provider(request):
    return PROVIDERS[request.param]


@pytest.mark.parametrize("case", CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def test_a_decision_is_made_again_if_another_client_changed_what_it_depends_on(opened, url, clock, monkeypatch, case):
    store = opened(url, clock=clock)
    connection, other = store.connect("commands"), store.connect("commands")
    add_worker(connection, seconds=3600)
    for command in case.before:
        (outcome,) = connection.execute([command])
        assert not isinstance(outcome, c.Failed), outcome
    write, tries = SqlSource.write, []

    def interrupted(source, *decided):
        tries.append(source)
        if len(tries) == 1:
            for command in case.meanwhile:
                (outcome,) = other.execute([command])
                assert not isinstance(outcome, c.Failed), outcome
        return write(source, *decided)

    monkeypatch.setattr(SqlSource, "write", interrupted)
    (answer,) = connection.execute([case.asked])
    assert case.right(answer, lambda look: other.execute([look])[0]), answer


def test_a_decision_that_is_half_a_minute_old_is_made_again(opened, url, monkeypatch):
    connection = opened(url).connect("commands")
    write, moments = SqlSource.write, []

    def late(source, repository, *rest):
        if not moments:
            repository.now -= 31 * SECOND
        moments.append(repository.now)
        return write(source, repository, *rest)

    monkeypatch.setattr(SqlSource, "write", late)
    ask(connection, start("r"), Started)
    assert len(moments) == 2
    assert ask(connection, r.ReadRun(run="r"), RunSeen).claim.run.created_at == moments[1]


def test_workers_that_were_only_read_for_hints_may_change_in_between(opened, url, clock, monkeypatch):
    store = opened(url, clock=clock)
    connection, other = store.connect("commands"), store.connect("commands")
    ask(connection, start("r"), Started)
    write, tries = SqlSource.write, []

    def interrupted(source, *decided):
        tries.append(source)
        if len(tries) == 1:
            add_worker(other, "v.1")
        return write(source, *decided)

    monkeypatch.setattr(SqlSource, "write", interrupted)
    connection.execute([signal("r")])
    assert sum(source is connection._source for source in tries) == 1
