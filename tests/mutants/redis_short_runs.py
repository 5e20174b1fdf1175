"""Mutants of the native form of a plain start and a plain end on Redis."""

from __future__ import annotations

from .runner import Mutant

HERE = "tests/stores/test_redis_short_runs.py::"
RUNS = "stores/redis/lua/runs.lua"
TWO_TRIPS = "tests/stores/test_work.py::TestRedis::test_ends_of_runs_with_a_queue_are_two_round_trips[valkey]"


def _case(name: str) -> str:
    return f"{HERE}test_the_native_form_has_the_outcomes_and_records_of_the_rules[valkey-{name.replace(' ', '-')}]"


def _mutant(name: str, old: str, new: str, *cases: str) -> Mutant:
    return Mutant(name, RUNS, old, new, tuple(map(_case, cases)))


REDIS_SHORT_RUNS = [
    Mutant(
        "an end that the form would decline is sent there all the same",
        "stores/redis/fast_path.py",
        "        if row is not None and row[0] == FINISH and row[1] in ends:\n",
        "        if False:\n",
        (TWO_TRIPS,),
    ),
    Mutant(
        "nothing is remembered of a queue",
        "stores/redis/record_source.py",
        "answer[:FEW])\n",
        "())\n",
        (TWO_TRIPS,),
    ),
    Mutant(
        "nothing is remembered of runs",
        "stores/redis/record_source.py",
        "        if run.living and (run.places or run.locks or run.parent):\n",
        "        if False:\n",
        (TWO_TRIPS,),
    ),
    Mutant(
        "a plain start is always left to the rules",
        RUNS,
        "if (operation == START or operation == FINISH) and not any then",
        "if false then",
        (HERE + "test_a_plain_start_and_a_plain_end_are_one_round_trip_each[valkey]",),
    ),
    Mutant(
        "a native start writes over the remains of another run",
        RUNS,
        '        and redis.pcall("EXISTS", run, journal, BASE .. "inbox:" .. key) == 0\n',
        '        and redis.pcall("EXISTS", run) == 0\n',
        (HERE + "test_a_start_over_the_remains_of_another_run_is_left_to_the_rules[valkey-journal:r]",),
    ),
    _mutant(
        "a native start does not check limits",
        '        and (terms == false or terms == "{}")\n',
        "",
        "a start under a limit",
    ),
    _mutant(
        "a native start does not see what its batch did to the lease",
        "    if lease == nil then\n",
        "    if true then\n",
        "a start for a worker that gives its lease back in the same batch",
    ),
    _mutant(
        "a native start does not check the lease",
        "      if owner == worker and tonumber(ends) > now\n",
        "      if true\n",
        "a start for a worker that gives its lease back in the same batch",
    ),
    _mutant(
        "a native end needs no fence",
        ' and found.fence == format("%.0f", id) and',
        " and",
        "an end under another fence",
    ),
    _mutant(
        "a native end is made anywhere in the journal",
        ' and redis.pcall("LLEN", journal) == command[4]\n',
        "\n",
        "an end elsewhere",
    ),
    _mutant(
        "a native end ignores events",
        "and posted <= command[7] and",
        "and",
        "an end with an event",
    ),
    _mutant(
        "a native end sends no event to the parent",
        "key = true, started_at",
        "parent = true, key = true, started_at",
        "an end of a child",
    ),
    _mutant(
        "a native end keeps others waiting at its limits",
        "key = true, started_at",
        "places = true, key = true, started_at",
        "a start under a limit",
    ),
    _mutant(
        "a native end keeps the locks of its run",
        "key = true, started_at",
        "locks = true, key = true, started_at",
        "an end of a run with a lock",
    ),
    _mutant(
        "a native end does not notify clients that wait for the end",
        "key = true, started_at",
        "watchers = true, key = true, started_at",
        "an end that somebody watches",
    ),
    _mutant(
        "a native end leaves its run with its worker",
        '{ "ZREM", BASE .. owned, key },\n',
        "\n",
        "an end",
    ),
    _mutant(
        "a native end leaves its run stuck",
        '{ "HDEL", run, "worker", "crashes", "stuck" }',
        '{ "HDEL", run, "worker", "crashes" }',
        "an end of a run that was stuck",
    ),
]
