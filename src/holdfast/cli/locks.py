"""`holdfast locks`: the holders and the queue of each lock, and the forced release of a lock."""

from __future__ import annotations

import sys

import click

from .. import Client, HoldfastError
from ..locks import LockInfo
from ..locks.admin import MAX_REASON
from .exit_codes import FAILED
from .options import Settings, as_seconds, common, open_client, pass_settings
from .output import (
    LOCK_COLUMNS,
    escaped_text,
    format_caller,
    format_duration,
    format_time,
    format_token,
    lock_document,
    lock_rows,
    print_json,
    print_line,
    print_rows,
)
from .watch import watch_changes, watch_screen


class ReleaseDeclined(HoldfastError):
    """The release was declined. Nothing was changed."""


class ChangedHands(HoldfastError):
    """The lock got a new holder before the answer. Nothing was released: inspect the lock and decide again."""


@click.group()
@common
def locks() -> None:
    """Show who holds each lock and who waits, and release a lock by force."""


@locks.command("list")
@click.argument("prefix", default="")
@common
@pass_settings
def list_(settings: Settings, prefix: str) -> None:
    """List every lock that is held or waited for and whose key begins with PREFIX."""
    with open_client(settings) as hf:
        found = hf.locks.list(prefix)
        if settings.json:
            print_json({"locks": [lock_document(info) for info in found]})
        elif found:
            print_rows(lock_rows(found), LOCK_COLUMNS)
        else:
            beginning = f" with the prefix {prefix!r}" if prefix else ""
            print_line(f"No lock{beginning} is held or waited for in {hf.url}, namespace {hf.namespace}.")


@locks.command()
@click.argument("key")
@common
@pass_settings
@click.pass_context
def show(context: click.Context, settings: Settings, key: str) -> None:
    """Show one lock: its holders, and its queue in order. Exits with 0 if the lock is free, with 1 if it is held."""
    with open_client(settings) as hf:
        info = hf.locks.inspect(key)
    if settings.json:
        print_json(lock_document(info))
    else:
        _show(info)
    context.exit(FAILED if info.held else 0)


def _show(info: LockInfo) -> None:
    status, style = (" is held", "yellow") if info.held else (" is free", "green")
    print_line(escaped_text(info.key, "bold").append(status, style))
    if info.fence:
        permits = f", {info.permits} permits" if info.permits > 1 else ""
        print_line(f"  kind {info.kind}{permits}, last token {format_token(info.fence)}")
    for holder in info.holders:
        offered = ", offered and not confirmed yet" if holder.offered else ""
        weight = f", {holder.weight} permits" if holder.weight > 1 else ""
        expiry = "without expiry" if holder.time_left is None else f"expires in {format_duration(holder.time_left)}"
        print_line(
            f"  held by {format_caller(holder)} for {format_duration(holder.age)}, since {format_time(holder.since)}, "
            f"{expiry}, token {format_token(holder.token)}{weight}{offered}"
        )
    for waiter in info.waiters:
        kept = "" if waiter.time_left is None else f", position kept for {format_duration(waiter.time_left)}"
        waited = format_duration(waiter.age)
        print_line(
            f"  position {waiter.position + 1} in the queue: {format_caller(waiter)}, waiting for {waited}{kept}"
        )
    if info.waiting > len(info.waiters):
        print_line(f"  {info.waiting - len(info.waiters)} more runs wait")
    if info.forced is not None:
        removed, forced = ", ".join(info.forced.holders), info.forced
        print_line(
            f"  last forced release: {removed} removed by {forced.by} at {format_time(forced.at)}, "
            f"because: {forced.reason}"
        )


@locks.command()
@click.argument("prefix", default="")
@click.option("--every", callback=as_seconds, default="1", show_default=True, help="Seconds between two queries.")
@click.option("--for", "lasting", callback=as_seconds, help="Seconds after which to end.  [until Ctrl-C]")
@common
@pass_settings
def watch(settings: Settings, prefix: str, every: float, lasting: float | None) -> None:
    """Show the locks whose key begins with PREFIX, repeatedly. Ctrl-C ends it.

    With --json, or if the output is not a terminal, print one line for each change.
    """
    try:
        with open_client(settings) as hf:
            if settings.json or not sys.stdout.isatty():
                watch_changes(hf, prefix, every, lasting, as_json=settings.json)
            else:
                watch_screen(hf, prefix, every, lasting)
    except KeyboardInterrupt:
        pass


def _checked_reason(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not value.strip() or len(value) > MAX_REASON:
        raise click.BadParameter(f"give the reason in at most {MAX_REASON} characters: it is stored with the lock.")
    return value


@locks.command()
@click.argument("key")
@click.option("--reason", required=True, callback=_checked_reason, help="The reason: stored with the lock, and shown.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common
@pass_settings
def release(settings: Settings, key: str, reason: str, *, yes: bool) -> None:
    """Release a lock by force: remove every holder of KEY.

    The holder's process is not stopped. A fence refuses its late writes; writes without a fence are not refused.
    """
    if not yes and (sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty()):
        raise click.UsageError(
            "There is no terminal to ask for confirmation on: check with 'holdfast locks show', then use --yes.",
            click.get_current_context(),
        )
    with open_client(settings) as hf:
        confirmed = yes or _confirmed(hf, key)
        removed = hf.locks.force_release(key, reason=reason) if confirmed else ()
    if settings.json:
        print_json({"key": key, "reason": reason, "released": removed})
        return
    if not removed:
        print_line(f"{key} has no holder: nothing was changed.")
        return
    for holder in removed:
        print_line(
            f"{key} was released: {format_caller(holder)} is not its holder any more, after "
            f"{format_duration(holder.age)} (token {format_token(holder.token)})."
        )
    print_line(
        "The process was not stopped. It is notified with its next renewal (a workflow run: by an event) and works "
        "until then."
    )


def _confirmed(hf: Client, key: str) -> bool:
    """Show the holders and ask for confirmation. False: the lock has no holder.

    If the lock has a new holder after the answer, nothing is released. Between that check and the release there are
    milliseconds in which the holder may still change.
    """
    before = hf.locks.inspect(key)
    if not before.held:
        return False
    for holder in before.holders:
        print_line(
            f"{key} is held by {format_caller(holder)} for {format_duration(holder.age)}, "
            f"since {format_time(holder.since)}.",
            err=True,
        )
    print_line(
        "The process is not stopped: until it is notified, its writes without a fence are not refused.", err=True
    )
    if not click.confirm("Release the lock by force?", err=True):
        raise ReleaseDeclined
    now = hf.locks.inspect(key)
    if {holder.token for holder in now.holders} - {holder.token for holder in before.holders}:
        raise ChangedHands
    return True
