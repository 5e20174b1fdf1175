"""Errors of MongoDB and of pymongo, translated into the errors of Holdfast.

This module alone decides which errors are `ambiguous` (the request may have been carried out), which are temporary, and
which an operator must resolve. The texts come from the server and the driver; neither repeats a password.
"""

from __future__ import annotations

import pymongo.errors as p

from ...errors import StoreError, StoreUnavailable, StoreUnusable

LOST_RACES = frozenset({11000, 112})
"""Codes of a single write that was not made because another one came first: duplicate key, write conflict."""
_PERMANENT = {
    13: "this user lacks a permission: docs/stores/mongodb.md lists those that Holdfast needs.",
    18: "the login failed. Check user name, password and ?authSource=.",
    8000: "the login failed. Check user name and password.",
    33: "the login mechanism is not supported. Check ?authMechanism=.",
    121: "the collection has a validation rule that refuses the documents of Holdfast. Use another ?collection=.",
    166: "the name is that of a view. Use another ?collection=.",
    10003: "the collection is capped. Use another ?collection=.",
    40573: "change streams need a replica set.",
    85: "the collection has another index of the same name. Remove the index holdfast_due; Holdfast makes it again.",
    86: "the collection has another index of the same name. Remove the index holdfast_due; Holdfast makes it again.",
}
_NOTHING_DONE = frozenset({10107, 13435, 13436})
"""Codes of a server that refused because it is not the primary, before it did anything."""
_SECRET_FREE = 300


def store_error(error: Exception, place: str, *, writing: bool) -> StoreError:
    """The Holdfast error for an error of the driver. `writing`: the request may have changed something."""
    text = _text(error)
    if isinstance(error, p.ServerSelectionTimeoutError | p.WaitQueueTimeoutError):
        return StoreUnavailable(f"the server {place} cannot be reached, and nothing was sent ({text})")
    if isinstance(error, p.NotPrimaryError) and _code(error) in _NOTHING_DONE:
        return StoreUnavailable(
            f"the server {place} is not the primary, and nothing was done. After a failover this error is temporary. "
            f"({text})"
        )
    if reason := _permanent_reason(error):
        return StoreUnusable(f"the server {place} refused: {reason} ({text})")
    what = "did not answer in time" if getattr(error, "timeout", False) else "did not answer"
    if writing:
        return StoreUnavailable(f"the server {place} {what} ({text}). The write may have been made.", ambiguous=True)
    return StoreUnavailable(f"the server {place} {what} ({text}). Nothing was changed.")


def _permanent_reason(error: Exception) -> str:
    """Why the same request will not succeed later either; empty where it may."""
    if isinstance(error, p.ConfigurationError | p.InvalidOperation | p.DocumentTooLarge):
        return "pymongo cannot use it with these settings."
    if not isinstance(error, p.OperationFailure) or isinstance(error, p.ExecutionTimeout | p.WriteConcernError):
        return ""
    code = _code(error)
    if code in _PERMANENT:
        return _PERMANENT[code]
    temporary = error.has_error_label("RetryableWriteError") or code in LOST_RACES
    return "" if temporary else "it does not support a request that Holdfast needs."


def _code(error: p.PyMongoError) -> int:
    details = getattr(error, "details", None)
    code = details.get("code") if isinstance(details, dict) else getattr(error, "code", None)
    return code if isinstance(code, int) else 0


def refused_write(errors: list[dict[str, object]], place: str, *, others_written: bool) -> StoreError:
    """The error for writes that the server refused for another reason than their condition."""
    first = errors[0]
    code, text = first.get("code"), str(first.get("errmsg", ""))[:_SECRET_FREE]
    reason = _PERMANENT.get(code if isinstance(code, int) else 0, "it refused a write.")
    error = StoreUnusable(f"the server {place} refused: {reason} (code {code}: {text})")
    error.ambiguous = others_written
    return error


def _text(error: Exception) -> str:
    """One line of the driver's text: it repeats the whole reply of the server after it."""
    return str(error).partition(", full error:")[0].partition(", Timeout:")[0][:_SECRET_FREE]
