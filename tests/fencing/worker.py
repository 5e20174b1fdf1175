"""What the tests of the fence run in processes of their own: `python worker.py COMMAND ARGUMENTS`."""

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
    """Content that shows whether it is whole."""
    return f"{token}\n" * 2_000


def say(*words):
    """Print at once: somebody waits for it."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def line_up():
    """Wait until everybody is there."""
    say("ready")
    sys.stdin.readline()


def fall_at(step, act):
    """Let `act(name, original, arguments)` happen in place of the `step`-th call that touches the disk."""
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
    """Die; in the middle, if it is a write."""
    if name == "write":
        fd, data = arguments
        original(fd, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def crash(path, token, step):
    """Replace the file once, and be killed at the given step; or say that there was none such."""
    fall_at(int(step), kill)
    fenced_replace(path, body(token), int(token))
    say("survived")


def stop(path, token):
    """Replace the file once, and be stopped in the middle, with the lock in hand."""

    def freeze(name, original, arguments):
        os.kill(os.getpid(), signal.SIGSTOP)
        return original(*arguments)

    fall_at(5, freeze)
    fenced_replace(path, body(token), int(token))
    say("done")


def race(path, seed, highest, rounds):
    """Offer random tokens; what was accepted once must shut out everything lower, for this writer too."""
    line_up()
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
    say(accepted, refused, best)


def climb(path, first):
    """Replace the file with ever higher tokens until killed, and tell each that was accepted."""
    token = int(first)
    while True:
        fenced_replace(path, body(token), token)
        say(token)
        token += 1


def sql_race(path, seed, highest, rounds):
    """Offer random tokens to one resource of a database; a table keeps what was accepted, in order."""
    chance = random.Random(int(seed))
    connection = sqlite3.connect(path, timeout=60)
    line_up()
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
    say(accepted, refused)


def pg_race(url, seed, highest, rounds):
    """The same on PostgreSQL."""
    chance = random.Random(int(seed))
    with psycopg.connect(url) as connection:
        line_up()
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
    say(accepted, refused)


def pg_write_and_hang(url, token):
    """Guard and write, and say so; somebody kills this process before it commits."""
    connection = psycopg.connect(url)
    guard(connection, "counter", int(token))
    connection.execute("INSERT INTO log (token) VALUES (%s)", (token,))
    line_up()
    connection.commit()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
