"""No command is half done in a Redis: whatever the server refuses in the middle, it is done once or not at all.

Every kind of command is sent while the user lacks the right to one Redis command, while the memory is full, or while
the key of an index has a wrong type. Then the cause is removed and the same command is sent again, as a client does.
Records and outcomes are those of the rules, either as if it had not been sent the first time, or as if it had been
executed then.
"""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
import real_servers
import redis
from providers import REDISES

from holdfast.errors import StoreError
from holdfast.testing.builders import ManualClock
from stores.redis_atomicity import CASES, Stage, commands_of_the_scripts
from stores.test_redis_faults import user

BASE = "holdfast:{default}:"


def on(kinds):
    """Runs a test with a server of each of these kinds, one for all tests of this module."""
    return pytest.mark.parametrize("own", kinds, indirect=True, scope="module", ids=lambda provider: provider.name)


EVERY = on(REDISES)
"""For rights and memory: Redis 6.2 has no `redis.acl_check_cmd`, so the scripts try the commands there instead."""
NEWEST = on([one for one in REDISES if one.name == "valkey" or os.environ.get("HOLDFAST_HISTORIES")])
"""For what the scripts do in the same way on every server; on the old Redis it is tested by `make test-suite`."""


@pytest.fixture(scope="module")
def own(request):
    with real_servers.server(request.param.name, settings={"appendonly": "no", "save": ""}) as server:
        yield server


@pytest.fixture
def operator(own):
    with redis.Redis(port=own.port, decode_responses=True) as client:
        client.flushall()
        yield client
        client.config_set("maxmemory", "0")


@pytest.fixture
def stage(own, operator, opened):
    user(operator, "app")
    clock = ManualClock()
    store = opened(own.url.replace("redis://", "redis://app:pw@"), clock=clock)
    with redis.Redis(port=own.port, decode_responses=False) as raw:
        yield Stage(lambda: store.connect("commands"), operator, BASE, clock, raw)


def used(operator, stage, commands):
    """The Redis commands that execute a batch, and everything that is stored before and after it."""
    stage.prepare()
    before = stage.stored()
    names = commands_of_the_scripts(operator)
    operator.config_resetstat()
    stage.send(commands)
    stats = operator.info("commandstats")
    found = {name.removeprefix("cmdstat_").upper() for name in stats} & names
    return found, before, stage.stored()


def half_done(stage, commands, before, after, *, take_away, give_back):
    """Whether a batch that was refused and sent again is neither done once nor not at all."""
    rules = stage.prepare()
    with stage.connecting() as connection:
        take_away()
        with suppress(StoreError):
            connection.execute(commands)
        give_back()
    left = stage.stored()
    if left == after:
        rules.execute(commands, stage.clock.now)
    return left not in (before, after) or not stage.equals(rules, commands)


@pytest.mark.parametrize("case", CASES)
@EVERY
def test_a_command_is_done_once_or_not_at_all_whichever_right_is_missing(operator, stage, case):
    commands = CASES[case]
    names, before, after = used(operator, stage, commands)
    assert names
    wrong = [
        name
        for name in sorted(names)
        if half_done(
            stage,
            commands,
            before,
            after,
            take_away=lambda name=name: operator.execute_command("ACL", "SETUSER", "app", f"-{name}"),
            give_back=lambda name=name: operator.execute_command("ACL", "SETUSER", "app", f"+{name}"),
        )
    ]
    assert wrong == []


@EVERY
def test_a_batch_that_was_refused_in_the_middle_is_completed_by_sending_it_again(operator, stage):
    """Its commands are independent of each other: some may have been executed, and these are not done twice."""
    batch = [command for case in BATCH for command in CASES[case]]
    names, _, _ = used(operator, stage, batch)
    for name in sorted(names):
        rules = stage.prepare()
        with stage.connecting() as connection:
            operator.execute_command("ACL", "SETUSER", "app", f"-{name}")
            with suppress(StoreError):
                connection.execute(batch)
            operator.execute_command("ACL", "SETUSER", "app", f"+{name}")
        stage.send(batch)
        rules.execute(batch, stage.clock.now)
        assert stage.equals(rules, batch), name


BATCH = ("RecordRun", "StartRun", "Acquire", "SwapSlot-delete", "PostEvent", "Acquire-queue", "ReviveRun")


@pytest.mark.parametrize("case", CASES)
@EVERY
def test_a_command_is_done_once_or_not_at_all_when_the_memory_is_full(operator, stage, case):
    """The server refuses the first write of a script that may need memory; after a first write it allows them all."""
    commands = CASES[case]
    _, before, after = used(operator, stage, commands)
    assert not half_done(
        stage,
        commands,
        before,
        after,
        take_away=lambda: operator.config_set("maxmemory", "1"),
        give_back=lambda: operator.config_set("maxmemory", "0"),
    )


RECORDS = ("run:", "journal:", "inbox:", "lock:", "slot:", "record:")


@pytest.mark.parametrize("case", CASES)
@NEWEST
def test_a_wrong_type_at_the_key_of_an_index_leaves_nothing_half_done(operator, stage, case):
    commands, wrong, errors = CASES[case], set(), []
    _, before, after = used(operator, stage, commands)
    for name in sorted(before.keys() | after.keys()):
        if name.startswith(RECORDS):
            continue  # damaged records are refused by name, and have other tests
        rules = stage.prepare()
        with stage.connecting() as connection:
            operator.eval(PUT_ASIDE, 2, BASE + name, "aside")
            try:
                connection.execute(commands)
            except StoreError as error:
                errors.append(error)
            operator.eval(PUT_BACK, 2, BASE + name, "aside")
        if stage.stored() == after:
            rules.execute(commands, stage.clock.now)
        if not stage.equals(rules, commands):
            wrong.add(name)
    assert wrong == set()
    assert all("holds data of another program" in str(error) for error in errors)
    assert not any("HALFWAY" in str(error) or error.ambiguous for error in errors)


PUT_ASIDE = """
if redis.call("EXISTS", KEYS[1]) == 1 then redis.call("RENAME", KEYS[1], KEYS[2]) end
redis.call("SET", KEYS[1], "mine")
"""
PUT_BACK = """
redis.call("DEL", KEYS[1])
if redis.call("EXISTS", KEYS[2]) == 1 then redis.call("RENAME", KEYS[2], KEYS[1]) end
"""
