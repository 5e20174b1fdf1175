"""Errors of DynamoDB, of botocore and of the network, translated into the errors of Holdfast.

This module alone decides which errors are `ambiguous` (a write may have been carried out), which are temporary, and
which an operator must resolve. The texts come from the service and from botocore; neither repeats a secret key.
"""

from __future__ import annotations

from typing import Any

import botocore.exceptions as b

from ...errors import StoreError, StoreUnavailable, StoreUnusable

CONDITION_FAILED = "ConditionalCheckFailedException"
NO_TABLE = "ResourceNotFoundException"
THROTTLED = frozenset({
    "ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "RequestLimitExceeded",
    "LimitExceededException", "TransactionConflictException", "TransactionInProgressException",
    "ReplicatedWriteConflictException", "RequestThrottled", "SlowDown",
})  # fmt: skip
"""The request was refused because of other requests, and nothing was done: it is sent again."""

_CREDENTIALS = "Credentials come from the environment, the shared files of the AWS CLI, or the role of the machine"
_PERMANENT = {
    NO_TABLE: "there is no such table in this region. Check the URL, or add ?create=true to it, and the table is "
    "created when it is first used.",
    "AccessDeniedException": "these credentials lack a permission; docs/stores/dynamodb.md lists the permissions that "
    "Holdfast needs.",
    "UnrecognizedClientException": f"it does not know these credentials. {_CREDENTIALS}.",
    "InvalidClientTokenId": f"it does not know these credentials. {_CREDENTIALS}.",
    "MissingAuthenticationTokenException": f"the request was not signed. {_CREDENTIALS}.",
    "MissingAuthenticationToken": f"the request was not signed. {_CREDENTIALS}.",
    "IncompleteSignatureException": f"the request was not signed completely. {_CREDENTIALS}.",
    "InvalidSignatureException": "the signature is wrong: the secret key is not the one of the access key, or this "
    "host's clock is wrong by more than five minutes.",
    "RequestTimeTooSkewed": "this host's clock is wrong by more than five minutes. Synchronise it (NTP, chrony).",
    "ExpiredTokenException": "the temporary credentials have expired. Renew them.",
    "ExpiredToken": "the temporary credentials have expired. Renew them.",
    "OptInRequired": "this account may not use DynamoDB in this region.",
    "AccessDenied": "these credentials lack a permission; docs/stores/dynamodb.md lists the permissions that Holdfast "
    "needs.",
}
_NOT_SENT = (b.EndpointConnectionError, b.ConnectTimeoutError, b.ProxyConnectionError, b.CredentialRetrievalError)
_UNUSABLE: tuple[tuple[tuple[type[Exception], ...], str, str], ...] = (
    (
        (b.NoCredentialsError, b.PartialCredentialsError, b.TokenRetrievalError, b.SSOError),
        "there are no credentials for",
        f"{_CREDENTIALS}.",
    ),
    (
        (b.SSLError,),
        "there is no certificate that can be trusted at",
        "Name its certificate authority in AWS_CA_BUNDLE, and use the host name that the certificate was issued for.",
    ),
    (
        (b.ParamValidationError, b.NoRegionError, b.UnknownServiceError, b.ProfileNotFound, b.InvalidConfigError),
        "a request cannot be made to",
        "Check the URL and the AWS configuration.",
    ),
)
_FIRST_SERVER_ERROR = 500


def code_of(error: BaseException) -> str:
    """The code of an error reply of the service; empty for all other errors."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, b.ClientError) else ""


def present_item(error: BaseException) -> Any:
    """The item that did not meet the condition of a write; None if there is no item."""
    return error.response.get("Item") if isinstance(error, b.ClientError) else None


def connection_was_closed(error: BaseException) -> bool:
    """Whether the server closed the connection, as servers do with idle ones: a read can be sent again at once."""
    return isinstance(error, b.ConnectionClosedError)


def store_error(error: Exception, where: str) -> StoreError:
    """The Holdfast error for an error of botocore; `ambiguous` if a write may have been carried out."""
    if isinstance(error, b.ClientError):
        return _refused(error, where)
    if isinstance(error, _NOT_SENT):
        return StoreUnavailable(f"{where} cannot be reached ({error}). Nothing was sent.")
    for kinds, what, then in _UNUSABLE:
        if isinstance(error, kinds):
            return StoreUnusable(f"{what} {where} ({error}). Nothing was sent. {then}")
    what = "did not answer in time" if isinstance(error, b.ReadTimeoutError) else "did not answer"
    return StoreUnavailable(
        f"{where} {what} ({type(error).__name__}: {error}). The request may or may not have been carried out.",
        ambiguous=True,
    )


def busy(where: str, reason: str) -> StoreUnavailable:
    """The error for a request that was throttled until the caller gave up."""
    return StoreUnavailable(
        f"{where} refused the request several times because there are too many ({reason}). Nothing was done. "
        "Raise the capacity of the table, or let fewer clients wait for the same key."
    )


def _refused(error: Any, where: str) -> StoreError:
    code, text = code_of(error), str(error.response.get("Error", {}).get("Message", ""))
    if code in THROTTLED:
        return busy(where, f"{code}: {text}")
    if code in _PERMANENT:
        return StoreUnusable(f"{where} refused, and nothing was done: {_PERMANENT[code]} ({code}: {text})")
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status >= _FIRST_SERVER_ERROR or not status:
        return StoreUnavailable(
            f"{where} failed ({code}: {text}). The request may or may not have been carried out.", ambiguous=True
        )
    return StoreUnusable(f"{where} refused, and nothing was done ({code}: {text})")
