"""The fence on Redis and Valkey: a key is set, or a script of the user is executed, after the check of a token.

The check, the stored floor and the write are one script, so no other writer can get in between. The fence of the
resource `stock:lamp` is the key `holdfast:fence:{stock:lamp}:stock:lamp`, in the same slot of a cluster as a key of the
resource's name. It holds the highest floor, as text, and does not expire. It is as durable as the data that it
protects: both are in one server's memory and log. Errors of the connection are raised as redis-py raises them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidDuration, InvalidKey, InvalidOption, StaleToken, StoreUnusable
from ..validation import Duration, checked_key, seconds
from .tokens import Fenced, checked_offer

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    SyncClient = redis.Redis | redis.RedisCluster
    AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster

Value = str | bytes | memoryview | int | float
"""Types that redis-py sends unchanged."""

PREFIX = "holdfast:fence:"
ACCEPTED, REFUSED = 1, 0
_FENCE = files(__package__).joinpath("fenced.lua").read_text(encoding="utf-8")
_SET = 'return redis.call("SET", KEYS[1], unpack(ARGV))'


def fenced_set(
    client: SyncClient,
    name: str,
    value: Value,
    lease_or_token: Fenced | int,
    *,
    ex: Duration | None = None,
    keepttl: bool = False,
) -> None:
    """Set a key on Redis or Valkey, unless a newer holder has set it.

    A token at or above the highest floor seen for the key is accepted, and its floor is stored; a lower one raises
    `StaleToken`, and nothing was written. `ex` lets the key expire after that time, `keepttl` keeps its current expiry.
    The resource is the key's name: a `FencedScript` of that resource shares its fence.
    """
    request = _SETTING.request(name, lease_or_token, [name], [value, *_expiry(ex, keepttl)])
    _call(_checked(client, FencedScript), request)


async def fenced_set_async(
    client: AsyncClient,
    name: str,
    value: Value,
    lease_or_token: Fenced | int,
    *,
    ex: Duration | None = None,
    keepttl: bool = False,
) -> None:
    """As `fenced_set`, for clients of `redis.asyncio`."""
    request = _SETTING.request(name, lease_or_token, [name], [value, *_expiry(ex, keepttl)])
    await _call_async(_checked(client, AsyncFencedScript), request)


class FencedScript:
    """A Lua script of yours, run behind the fence: in the same atomic step, and only if no newer holder has written.

    The source is written as for EVAL, with its own `KEYS` and `ARGV`. Create the object once and call it with the
    resource and the lease; it returns the script's result. A token below the highest floor seen for the resource raises
    `StaleToken`, and the script was not run. The floor is stored before the script is executed. Redis does not roll
    back; so the writes of a script that fails are protected from older holders, too.

    In a cluster the keys must be in the slot of the resource: let the resource be one of them, or give all of them the
    same hash tag.
    """

    def __init__(self, client: SyncClient, source: str) -> None:
        self._client = _checked(client, FencedScript)
        self._script = _Script.around(source)

    def __call__(
        self,
        resource: str,
        lease_or_token: Fenced | int,
        *,
        keys: Sequence[str | bytes] = (),
        args: Sequence[Value] = (),
    ) -> Any:
        """Run it, or raise `StaleToken`."""
        return _call(self._client, self._script.request(resource, lease_or_token, keys, args))


class AsyncFencedScript:
    """As `FencedScript`, for clients of `redis.asyncio`: the call is awaited."""

    def __init__(self, client: AsyncClient, source: str) -> None:
        self._client = _checked(client, AsyncFencedScript)
        self._script = _Script.around(source)

    async def __call__(
        self,
        resource: str,
        lease_or_token: Fenced | int,
        *,
        keys: Sequence[str | bytes] = (),
        args: Sequence[Value] = (),
    ) -> Any:
        """Run it, or raise `StaleToken`."""
        return await _call_async(self._client, self._script.request(resource, lease_or_token, keys, args))


class _Script(NamedTuple):
    source: str
    digest: str

    @classmethod
    def around(cls, source: str) -> _Script:
        """The user's script as a function, on its own lines, and the fence after it."""
        if not isinstance(source, str):
            raise InvalidOption(f"a script must be text, not {type(source).__name__}")
        flags, body = "", source
        if source.startswith("#!"):  # must stay the first line
            flags, _, body = source.partition("\n")
            flags += "\n"
        whole = f"{flags}local function work(KEYS, ARGV) {body}\nend\n{_FENCE}"
        return cls(whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())

    def request(
        self, resource: str, lease_or_token: Fenced | int, keys: Sequence[str | bytes], args: Sequence[Value]
    ) -> _Request:
        """Check everything before a command is sent to the server."""
        for what, given in (("keys", keys), ("args", args)):
            if isinstance(given, str | bytes):
                raise InvalidOption(f"{what} must be a list, not the single value {given!r}")
        offer = checked_offer(lease_or_token)
        fence = fence_key(checked_key(resource, what="resource"))
        return _Request(
            self, resource, fence, offer.token, [1 + len(keys), fence, *keys, offer.token, offer.floor, *args]
        )


class _Request(NamedTuple):
    script: _Script
    resource: str
    fence: str
    offered: int
    arguments: list[Any]  # of EVAL or EVALSHA, after the script or its digest

    def result(self, answer: list[Any]) -> Any:
        """The result of the user's script; raises if the token was refused."""
        code, *rest = answer
        found = rest[0] if rest else None
        if code == ACCEPTED:
            return found
        if code == REFUSED and found is not None:
            raise StaleToken(resource=self.resource, offered=self.offered, highest=int(found))
        shown = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
        raise StoreUnusable(
            f"the fence {self.fence!r} cannot be read: {shown!r} is not a floor. Nothing was written, because older "
            "tokens could not be detected any more. Stop all writers, make sure that no old one is left, delete that "
            "key, and start again."
        )


_SETTING = _Script.around(_SET)


def fence_key(resource: str) -> str:
    """The key that holds the highest floor of a resource, in the same slot of a cluster as a key of that name.

    >>> fence_key("stock:lamp"), fence_key("{shop:7}:stock")
    ('holdfast:fence:{stock:lamp}:stock:lamp', 'holdfast:fence:{shop:7}:{shop:7}:stock')
    """
    return f"{PREFIX}{{{_tag(resource)}}}:{resource}"


def _tag(name: str) -> str:
    """The part of a key that a cluster hashes: between its first `{` and the next `}`, else all of it."""
    _, opened, rest = name.partition("{")
    tag, closed, _ = rest.partition("}")
    if opened and closed and tag:
        return tag
    if "}" in name:  # within braces it would end the tag too early
        raise InvalidKey(
            f"the resource {name!r} has a '}}' but no hash tag, so in a cluster no fence could be in the same slot: "
            "use another name, or one with a hash tag, such as '{shop:7}:stock'"
        )
    return name


def _expiry(ex: Duration | None, keepttl: bool) -> list[str | int]:  # noqa: FBT001  # passed on
    if ex is None:
        return ["KEEPTTL"] if keepttl else []
    if keepttl:
        raise InvalidOption("use either ex or keepttl: a key cannot both get a new expiry and keep its own")
    milliseconds = round(seconds(ex, what="ex") * 1_000)
    if milliseconds < 1:
        raise InvalidDuration(f"ex cannot be {ex!r}: it must be at least one millisecond")
    return ["PX", milliseconds]


def _checked(client: Any, wanted: type[FencedScript | AsyncFencedScript]) -> Any:
    """The client, if it is sync or async as wanted. A pipeline is refused: its result would come too late."""
    asynchronous, name = _known(client)
    found = f"{type(client).__module__}.{type(client).__qualname__}"
    if name is None:
        raise InvalidOption(
            f"{found} is not a client of redis-py; supported are Redis and RedisCluster, of redis and of redis.asyncio"
        )
    if name not in ("Redis", "RedisCluster"):
        raise InvalidOption(f"{found} returns results later, so a refusal could not be raised: pass the client itself")
    if asynchronous and wanted is FencedScript:
        raise InvalidOption(f"{found} is async: await fenced_set_async, or use AsyncFencedScript")
    if not asynchronous and wanted is AsyncFencedScript:
        raise InvalidOption(f"{found} is sync: use fenced_set or FencedScript, without await")
    return client


def _known(client: object) -> tuple[bool, str | None]:
    """Whether a client of redis-py is async, and the name of its class."""
    for cls in type(client).__mro__:
        package, *rest = cls.__module__.split(".")
        if package == "redis" and cls.__name__ in ("Redis", "RedisCluster", "Pipeline", "ClusterPipeline"):
            return rest[:1] == ["asyncio"], cls.__name__
    return False, None


def _call(client: Any, request: _Request) -> Any:
    from redis.exceptions import NoScriptError  # noqa: PLC0415  # installed where there is a client

    script = request.script
    try:
        answer = client.evalsha(script.digest, *request.arguments)
    except NoScriptError:
        answer = client.eval(script.source, *request.arguments)
    return request.result(answer)


async def _call_async(client: Any, request: _Request) -> Any:
    from redis.exceptions import NoScriptError  # noqa: PLC0415  # installed where there is a client

    script = request.script
    try:
        answer = await client.evalsha(script.digest, *request.arguments)
    except NoScriptError:
        answer = await client.eval(script.source, *request.arguments)
    return request.result(answer)
