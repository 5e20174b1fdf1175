"""The URL of a table, its options, and the botocore client that they make.

`dynamodb://region/table?endpoint=…&create=true&skew=2&expiry=clock`. Without a region, that of the environment or of
the profile is used. botocore finds credentials, certificates and proxies by itself; its retries are off, because only
the caller knows what a request that was sent twice means.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import botocore.config
import botocore.exceptions
import botocore.session
import msgspec

from ...errors import InvalidDuration, InvalidOption
from ...platform import after_fork_in_child
from ...validation import MICROSECONDS, seconds

Expiry = Literal["clock", "observed"]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
MAX_SKEW_SECONDS = 3_600.0
POOLED_CONNECTIONS = 32
"""HTTP connections that a client keeps open for its next requests."""

_TABLE = re.compile(r"[A-Za-z0-9_.\-]{3,255}")
_REGION = re.compile(r"[A-Za-z0-9\-]*")
_TRUE = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_EXPIRIES: dict[str, Expiry] = {"clock": "clock", "observed": "observed"}
_FORM = "dynamodb://region/table, as in dynamodb://eu-central-1/holdfast"

_lock = threading.Lock()
_sessions: dict[str | None, Any] = {}


class DynamoAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A table, and how it is used. `skew` (microseconds) and `expiry` are None where the URL does not state them."""

    table: str
    region: str | None
    endpoint: str | None = None
    profile: str | None = None
    create: bool = False
    skew: int | None = None
    expiry: Expiry | None = None
    connect_timeout: float = CONNECT_SECONDS
    read_timeout: float = ANSWER_SECONDS
    credentials: tuple[str, str] | None = None
    session: Any = None
    """A `boto3.Session` of the program; None: botocore's usual settings."""

    def __repr__(self) -> str:
        """Omits the credentials."""
        return f"<DynamoAddress {self.name}>"

    @property
    def name(self) -> str:
        """The address without secrets; equal for equivalent URLs."""
        if self.endpoint is None:
            return f"dynamodb://{self.region}/{self.table}"
        return f"dynamodb://{urlsplit(self.endpoint).netloc.lower().replace('localhost', '127.0.0.1')}/{self.table}"

    def client(self) -> Any:
        """A new botocore client. It is safe for several threads, but not across a fork."""
        config = botocore.config.Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            max_pool_connections=POOLED_CONNECTIONS,
            tcp_keepalive=True,
        )
        key, secret = self.credentials or (None, None)
        with _lock:  # sessions are not safe for several threads, clients are
            make = _session(self.profile).create_client if self.session is None else self.session.client
            return make(
                "dynamodb",
                region_name=self.region,
                endpoint_url=self.endpoint,
                aws_access_key_id=key,
                aws_secret_access_key=secret,
                config=config,
            )


def address_of_url(url: str) -> DynamoAddress:
    """The address that a URL contains. No error repeats the URL, which may contain a secret key."""
    parts = urlsplit(url)
    user, at, region = parts.netloc.rpartition("@")
    key, colon, secret = user.partition(":")
    if at and not (key and colon and secret):
        raise InvalidOption(
            "credentials in a DynamoDB URL are access-key:secret-key@, and should be there for local servers only"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    made = _address(unquote(region), unquote(parts.path.strip("/")), options)
    return msgspec.structs.replace(made, credentials=(unquote(key), unquote(secret))) if at else made


def address_of_session(session: Any, options: Mapping[str, object]) -> DynamoAddress:
    """The address of a table that is reached through a `boto3.Session`."""
    given = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if name not in ("table", "region")
    }
    table, region = options.get("table"), options.get("region") or session.region_name
    if not isinstance(table, str):
        raise InvalidOption("with a boto3.Session the option table= names the table")
    if "profile" in given:
        raise InvalidOption("with a boto3.Session, set the profile on the session itself")
    return msgspec.structs.replace(_address(str(region or ""), table, given), session=session)


def _address(region: str, table: str, options: Mapping[str, str]) -> DynamoAddress:
    known = ("endpoint", "create", "skew", "expiry", "profile", "connect_timeout", "read_timeout")
    if unknown := sorted(set(options) - set(known)):
        raise InvalidOption(f"a DynamoDB URL has no option {', '.join(unknown)}; known are {', '.join(known)}")
    if not _TABLE.fullmatch(table):
        raise InvalidOption(
            f"the URL must name a table, 3 to 255 letters, digits, dots, hyphens and underscores: {_FORM}"
        )
    if not _REGION.fullmatch(region):
        raise InvalidOption(f"the host of a DynamoDB URL is the region: {_FORM}. Another server is ?endpoint=")
    create = _TRUE.get(options.get("create", "false").lower())
    if create is None:
        raise InvalidOption("?create= must be true or false")
    expiry = options.get("expiry")
    if expiry is not None and expiry not in _EXPIRIES:
        raise InvalidOption("?expiry= must be clock or observed")
    skew = _skew(options["skew"]) if "skew" in options else None
    if expiry == "observed" and skew:
        raise InvalidOption("?skew= has no meaning with ?expiry=observed, which compares no clocks: leave it out")
    profile = options.get("profile")
    if profile is not None:
        with _lock:
            _session(profile)  # raises if there is no such profile
    return DynamoAddress(
        table=table,
        region=region or _usual_region(profile, with_endpoint="endpoint" in options),
        endpoint=_endpoint(options["endpoint"]) if "endpoint" in options else None,
        profile=profile,
        create=create,
        skew=0 if expiry == "observed" else skew,
        expiry=None if expiry is None else _EXPIRIES[expiry],
        connect_timeout=_timeout(options, "connect_timeout", CONNECT_SECONDS),
        read_timeout=_timeout(options, "read_timeout", ANSWER_SECONDS),
    )


def _skew(value: str) -> int:
    length = _duration("skew", value)
    if length > MAX_SKEW_SECONDS:
        raise InvalidOption(
            f"?skew= may be at most {MAX_SKEW_SECONDS:g} s: every lock stays held for that much longer when its holder "
            "ends without releasing it. Synchronise the clocks, or use ?expiry=observed"
        )
    return round(length * MICROSECONDS)


def _timeout(options: Mapping[str, str], name: str, default: float) -> float:
    value = _duration(name, options[name]) if name in options else default
    if not value:
        raise InvalidOption(f"?{name}= must be longer than 0 s")
    return value


def _duration(name: str, value: str) -> float:
    try:
        return seconds(value, what=f"?{name}=")
    except InvalidDuration as error:
        raise InvalidOption(str(error)) from None


def _endpoint(value: str) -> str:
    if urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname:
        raise InvalidOption("?endpoint= must be an http or https URL, as in ?endpoint=http://localhost:8000")
    if urlsplit(value).username or urlsplit(value).password:
        raise InvalidOption("?endpoint= must not contain credentials")
    return value.rstrip("/")


def _usual_region(profile: str | None, *, with_endpoint: bool) -> str | None:
    with _lock:
        region: str | None = _session(profile).get_config_variable("region")
    if region is None and not with_endpoint:
        raise InvalidOption(f"the URL names no region, and neither AWS_REGION nor the profile does: {_FORM}")
    return region or "us-east-1"


def _session(profile: str | None) -> Any:
    """The session of this process for a profile: making one takes longer than making a client. Call it with `_lock`."""
    try:
        if profile not in _sessions:
            session = botocore.session.Session(profile=profile)
            session.get_scoped_config()
            _sessions[profile] = session
    except botocore.exceptions.ProfileNotFound as error:
        raise InvalidOption(f"{error}: ?profile= names a profile of the AWS configuration") from None
    return _sessions[profile]


def _reset_after_fork() -> None:
    global _lock  # noqa: PLW0603  (the old one may be held by a thread that is not in this process)
    _lock = threading.Lock()
    _sessions.clear()


after_fork_in_child(_reset_after_fork)
