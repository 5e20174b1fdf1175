"""Programs that the tests of the fence run as separate processes: `python worker.py COMMAND ARGUMENTS`."""

import os
import random
import signal
import sqlite3
import sys

import psycopg

from holdfast.errors import StaleToken
from holdfast.fencing import fenced_replace, guard

STEPS = ("open", "write", "fsync", "replace", "unlink")


def body(token):
    """Content that shows whether it is complete."""
    return f"{token}\n" * 2_000


def report(*words):
    """Print a line at once: the test waits for it."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def wait_for_start():
    """Wait until the test starts all processes."""
    report("ready")
    sys.stdin.readline()


def act_at_step(step, act):
    """Call `act(name, original, arguments)` instead of the `step`-th system call that uses the disk."""
    calls = 0

    def watched(name, original):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == step:
                return act(name, original, arguments)
            return original(*arguments, **options)

        return call

    for name in STEPS:
        setattr(os, name, watched(name, getattr(os, name)))


def kill(name, original, arguments):
    """Kill this process; in the middle of the call, if it is a write."""
    if name == "write":
        fd, data = arguments
        original(fd, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def crash(path, token, step):
    """Replace the file once, and be killed at the given step; print "survived" if there is no such step."""
    act_at_step(int(step), kill)
    fenced_replace(path, body(token), int(token))
    report("survived")


def stop(path, token):
    """Replace the file once, and be stopped in the middle, while it holds the lock."""

    def freeze(name, original, arguments):
        os.kill(os.getpid(), signal.SIGSTOP)
        return original(*arguments)

    act_at_step(5, freeze)
    fenced_replace(path, body(token), int(token))
    report("done")


def race(path, seed, highest, rounds):
    """Write with random tokens; an accepted token must refuse all lower ones, for this writer too."""
    wait_for_start()
    chance = random.Random(int(seed))
    accepted, refused, best = 0, 0, 0
    for _ in range(int(rounds)):
        token = chance.randint(1, int(highest))
        try:
            fenced_replace(path, body(token), token)
        except StaleToken:
            refused += 1
        else:
            assert token >= best, (token, best)
            best = token
            accepted += 1
    report(accepted, refused, best)


def raise_tokens(path, first):
    """Replace the file with increasing tokens until killed, and print each accepted token."""
    token = int(first)
    while True:
        fenced_replace(path, body(token), token)
        report(token)
        token += 1


def sql_race(path, seed, highest, rounds):
    """Write with random tokens to one resource of a database; a table stores the accepted ones, in order."""
    chance = random.Random(int(seed))
    connection = sqlite3.connect(path, timeout=60)
    wait_for_start()
    accepted, refused = 0, 0
    for _ in range(int(rounds)):
        token = chance.randint(1, int(highest))
        try:
            with connection:
                guard(connection, "counter", token)
                connection.execute("INSERT INTO log (token) VALUES (?)", (token,))
            accepted += 1
        except StaleToken:
            refused += 1
    connection.close()
    report(accepted, refused)


def pg_race(url, seed, highest, rounds):
    """The same on PostgreSQL."""
    chance = random.Random(int(seed))
    with psycopg.connect(url) as connection:
        wait_for_start()
        accepted, refused = 0, 0
        for _ in range(int(rounds)):
            token = chance.randint(1, int(highest))
            try:
                with connection.transaction():
                    guard(connection, "counter", token)
                    connection.execute("INSERT INTO log (token) VALUES (%s)", (token,))
                accepted += 1
            except StaleToken:
                refused += 1
    report(accepted, refused)


def pg_write_and_hang(url, token):
    """Guard, write and print a line; the test kills this process before it commits."""
    connection = psycopg.connect(url)
    guard(connection, "counter", int(token))
    connection.execute("INSERT INTO log (token) VALUES (%s)", (token,))
    wait_for_start()
    connection.commit()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
