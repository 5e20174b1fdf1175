"""URLs of stores, and their form for logs and messages.

A password is in the userinfo (`user:password@`) or in the query (`?password=`). Text that may be part of a password is
hidden too: a missing host name in a log is better than a visible password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from ..errors import InvalidOption

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_SECRET = re.compile(
    r"(?i)((?:^|[?&;\s])[^=&;\s?]*(?:pass|pwd|token|secret|key|auth|credential|signature|listen)[^=&;\s]*\s*=)[^&;\s]*"
)
HIDDEN = "***"


def scheme_of(url: str) -> str:
    """The scheme in lower case. The error does not repeat the text, which may be a password."""
    match = _SCHEME.match(url) if isinstance(url, str) else None
    if match is None:
        raise InvalidOption(
            "the URL of a store begins with a scheme and ://, such as sqlite:///relative/path.db, "
            "sqlite:////absolute/path.db or memory://name; this one does not"
        )
    return match[1].lower()


def redacted(url: str) -> str:
    """The URL without its secrets, for logs and messages.

    >>> redacted("postgresql://app:s3cret@db.example/locks?sslpassword=x&sslmode=require")
    'postgresql://app:***@db.example/locks?sslpassword=***&sslmode=require'
    """
    match = _SCHEME.match(url)
    if match is None:
        return HIDDEN
    start, rest = match[0], url[match.end() :]
    if not rest.startswith("/"):  # an empty authority has no userinfo; an @ is part of the path then
        # The last @ in the URL: a password that was not percent-encoded may contain / ? # and @.
        userinfo, at, place = rest.rpartition("@")
        if at and not (place and "://" in userinfo):
            user, colon, _ = userinfo.partition(":")
            rest = f"{user}{colon and ':' + HIDDEN}@{place}"
        elif at:
            rest = f"{HIDDEN}@{place}"
    return start + _SECRET.sub(lambda found: found[1] + HIDDEN, rest)


def anchored(url: str) -> str:
    """The URL with its relative path, if it has one, made absolute: it is then valid in any working directory.

    >>> anchored("sqlite:////var/lib/app/holdfast.db")
    'sqlite:////var/lib/app/holdfast.db'
    """
    match = _SCHEME.match(url)
    if match is None or match[1].lower() != "sqlite" or not url[match.end() :].startswith("/"):
        return url
    path, question, query = url[match.end() + 1 :].partition("?")
    if not path or path.startswith("/") or path == ":memory:":
        return url
    return f"{match[0]}/{quote(str(Path.cwd()))}/{path}{question}{query}"


def with_options(url: str, options: Mapping[str, object]) -> str:
    """The URL with these options in its query as well.

    >>> with_options("postgresql://db.example/locks?sslmode=require", {"schema": "my locks", "advisory": True})
    'postgresql://db.example/locks?sslmode=require&schema=my%20locks&advisory=true'
    """
    if not options:
        return url
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return f"{url}{'&' if '?' in url else '?'}{urlencode(given, quote_via=quote)}"
