"""URLs of stores, and what may be shown of them.

A password is in the userinfo (`user:password@`) or in the query (`?password=`). What cannot be told from a
password with certainty is hidden too: better a host name less in a log than a password more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from ..errors import InvalidOption

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_SECRET = re.compile(
    r"(?i)((?:^|[?&;\s])[^=&;\s?]*(?:pass|pwd|token|secret|key|auth|credential|signature|listen)[^=&;\s]*\s*=)[^&;\s]*"
)
HIDDEN = "***"


def scheme_of(url: str) -> str:
    """The scheme in lower case. The refusal does not repeat the text, which might be a password."""
    match = _SCHEME.match(url) if isinstance(url, str) else None
    if match is None:
        raise InvalidOption(
            "a store's address begins with a scheme and ://, such as sqlite:///relative/path.db, "
            "sqlite:////absolute/path.db or memory://name; the one that was given does not"
        )
    return match[1].lower()


def redacted(url: str) -> str:
    """The URL without its secrets, for people and logs.

    >>> redacted("postgresql://app:s3cret@db.example/locks?sslpassword=x&sslmode=require")
    'postgresql://app:***@db.example/locks?sslpassword=***&sslmode=require'
    """
    match = _SCHEME.match(url)
    if match is None:
        return HIDDEN
    start, rest = match[0], url[match.end() :]
    if not rest.startswith("/"):  # an empty authority has no userinfo; an @ is part of the path then
        # The last @ of all: a password that was not percent-encoded may hold any of / ? # @.
        userinfo, at, place = rest.rpartition("@")
        if at and not (place and "://" in userinfo):
            user, colon, _ = userinfo.partition(":")
            rest = f"{user}{colon and ':' + HIDDEN}@{place}"
        elif at:
            rest = f"{HIDDEN}@{place}"
    return start + _SECRET.sub(lambda found: found[1] + HIDDEN, rest)


def with_options(url: str, options: Mapping[str, object]) -> str:
    """The URL with these options in its query as well.

    >>> with_options("postgresql://db.example/locks?sslmode=require", {"schema": "my locks", "advisory": True})
    'postgresql://db.example/locks?sslmode=require&schema=my%20locks&advisory=true'
    """
    if not options:
        return url
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return f"{url}{'&' if '?' in url else '?'}{urlencode(given, quote_via=quote)}"
