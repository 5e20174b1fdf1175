"""`holdfast locks`: who holds what, who waits, and how to put a holder out."""

from __future__ import annotations

import sys

import click

from .. import Client, HoldfastError
from ..locks import LockInfo
from ..locks.admin import MAX_REASON
from .exit_codes import FAILED
from .options import Settings, as_seconds, common, opened, pass_settings
from .output import console, left, length, lock_document, lock_table, moment, say, shown, tell, who
from .watch import watch_changes, watch_screen


class ReleaseDeclined(HoldfastError):
    """Nobody was put out."""


class ChangedHands(HoldfastError):
    """The lock changed hands while you were asked. Nobody was put out: look again, then decide again."""


@click.group()
@common
def locks() -> None:
    """Who holds what, who waits, and how to put a holder out."""


@locks.command("list")
@click.argument("prefix", default="")
@common
@pass_settings
def list_(settings: Settings, prefix: str) -> None:
    """Every lock that is held or waited for, those whose key begins with PREFIX."""
    with opened(settings) as hf:
        found = hf.locks.list(prefix)
        if settings.json:
            tell({"locks": [lock_document(info) for info in found]})
        elif found:
            console().print(lock_table(found))
        else:
            say(f"Nobody holds or waits for anything in {hf.url}, namespace {hf.namespace}.")


@locks.command()
@click.argument("key")
@common
@pass_settings
@click.pass_context
def show(context: click.Context, settings: Settings, key: str) -> None:
    """One lock: its holders, its waiters in order. Exits with 0 if nobody holds it, with 1 if somebody does."""
    with opened(settings) as hf:
        info = hf.locks.inspect(key)
    if settings.json:
        tell(lock_document(info))
    else:
        _show(info)
    context.exit(FAILED if info.held else 0)


def _show(info: LockInfo) -> None:
    say(shown(info.key, "bold").append(" is held" if info.held else " is free", "yellow" if info.held else "green"))
    if info.fence:
        permits = f", {info.permits} permits" if info.permits > 1 else ""
        say(f"  kind {info.kind}{permits}, last token {info.fence}")
    for holder in info.holders:
        offered = ", offered and not confirmed yet" if holder.offered else ""
        weight = f", {holder.weight} permits" if holder.weight > 1 else ""
        say(
            f"  held by {who(holder)} for {length(holder.age)}, since {moment(holder.since)}, "
            f"{left(holder.time_left)} left, token {holder.token}{weight}{offered}"
        )
    for waiter in info.waiters:
        kept = "" if waiter.time_left is None else f", its place is kept for {length(waiter.time_left)}"
        say(f"  waiting at place {waiter.position + 1}: {who(waiter)} for {length(waiter.age)}{kept}")
    if info.waiting > len(info.waiters):
        say(f"  and {info.waiting - len(info.waiters)} more runs are waiting")
    if info.forced is not None:
        put_out = ", ".join(info.forced.holders)
        say(f"  last put out: {put_out} at {moment(info.forced.at)} by {info.forced.by}, because: {info.forced.reason}")


@locks.command()
@click.argument("prefix", default="")
@click.option("--every", callback=as_seconds, default="1", show_default=True, help="Seconds between two looks.")
@click.option("--for", "lasting", callback=as_seconds, help="Seconds after which to end.  [until Ctrl-C]")
@common
@pass_settings
def watch(settings: Settings, prefix: str, every: float, lasting: float | None) -> None:
    """The locks whose key begins with PREFIX, looked at again and again. Ctrl-C ends it.

    With --json, or where the output is no terminal, it is one line for each change.
    """
    try:
        with opened(settings) as hf:
            if settings.json or not sys.stdout.isatty():
                watch_changes(hf, prefix, every, lasting, as_json=settings.json)
            else:
                watch_screen(hf, prefix, every, lasting)
    except KeyboardInterrupt:
        pass


def _checked_reason(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not value.strip() or len(value) > MAX_REASON:
        raise click.BadParameter(f"say in at most {MAX_REASON} characters why: it is kept with the lock.")
    return value


@locks.command()
@click.argument("key")
@click.option("--reason", required=True, callback=_checked_reason, help="Why: kept with the lock for who asks later.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
@pass_settings
def release(settings: Settings, key: str, reason: str, *, yes: bool) -> None:
    """Put every holder of KEY out. The holder is not stopped by this; the fence refuses its late writes."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty()):
        raise click.UsageError(
            "There is no terminal to ask on: look with 'holdfast locks show', then say --yes.",
            click.get_current_context(),
        )
    with opened(settings) as hf:
        asked = yes or _confirmed(hf, key)
        put_out = hf.locks.force_release(key, reason=reason) if asked else ()
    if settings.json:
        tell({"key": key, "reason": reason, "released": put_out})
        return
    if not put_out:
        say(f"Nobody holds {key}: nothing was changed.")
        return
    for holder in put_out:
        say(f"{who(holder)} was put out of {key} after {length(holder.age)} (token {holder.token}).")
    say("It learns of it with its next renewal, a run by a message, and works until then.")


def _confirmed(hf: Client, key: str) -> bool:
    """Ask on the terminal, with who would be put out. False: nobody is.

    If others hold it when the answer comes, nobody is put out. Between that look and the release lie milliseconds
    in which it may still change hands.
    """
    before = hf.locks.inspect(key)
    if not before.held:
        return False
    for holder in before.holders:
        say(f"{key} is held by {who(holder)} for {length(holder.age)}, since {moment(holder.since)}.", err=True)
    say("The process itself is not stopped: writes without a fence go on until it hears of it.", err=True)
    if not click.confirm("Put it out?", err=True):
        raise ReleaseDeclined
    now = hf.locks.inspect(key)
    if {holder.token for holder in now.holders} - {holder.token for holder in before.holders}:
        raise ChangedHands
    return True
