"""The DynamoDB adapter alone: names, conditional writes, pages, and what it makes of lost replies and throttling."""

from __future__ import annotations

import threading

import botocore.exceptions
import pytest
import real_servers
from providers import dynamodb_proxy, dynamodb_url, needs_refused_items

from holdfast.errors import StoreUnavailable, StoreUnusable
from holdfast.platform import host_clock
from holdfast.stores.cas_adapter import LOCKS, SLOTS, CasName, CasWrite
from holdfast.stores.dynamodb import connection as module
from holdfast.stores.dynamodb.address import address_of_url
from holdfast.stores.dynamodb.layout import LONGEST_KEY, MAX_RECORD, partition, sort_key
from holdfast.stores.dynamodb.store import DynamoService

NAMESPACE = "default"


@pytest.fixture
def url():
    return dynamodb_url()


@pytest.fixture
def service():
    made = []

    def opening(url, namespace=NAMESPACE, clock=host_clock):
        one = DynamoService(address_of_url(url), namespace, clock, url=url)
        adapter = one.connect()
        made.extend([adapter, one])
        return adapter

    yield opening
    for one in made:
        one.close()


@pytest.fixture
def adapter(url, service):
    return service(url)


def put(key, stamp, expected=None, *, text="{}", due_at=None, kind=LOCKS):
    return CasWrite(CasName(kind, key), text, due_at, stamp, expected)


def gone(key, expected, *, kind=LOCKS):
    return CasWrite(CasName(kind, key), None, None, "removal", expected)


def stamps(adapter, *keys, kind=LOCKS):
    names = [CasName(kind, key) for key in keys]
    found = adapter.read(names).found
    return [found[name].stamp if name in found else None for name in names]


def test_a_write_is_applied_only_if_the_stamp_is_the_expected_one(adapter):
    assert adapter.write([put("k", "1")]) == [True]
    assert adapter.write([put("k", "2")]) == [False]
    assert adapter.write([put("k", "2", "0")]) == [False]
    assert adapter.write([put("k", "2", "1")]) == [True]
    assert adapter.write([put("absent", "2", "1")]) == [False]
    assert adapter.write([gone("k", "1"), gone("absent", "1")]) == [False, False]
    assert stamps(adapter, "k", "absent") == ["2", None]
    assert adapter.write([gone("k", "2")]) == [True]
    assert stamps(adapter, "k") == [None]


def test_a_write_that_is_there_already_counts_as_applied(adapter, url):
    """The reply to the first request was lost somewhere, and the request was sent again."""
    needs_refused_items(url)
    assert adapter.write([put("k", "1")]) == [True]
    assert adapter.write([put("k", "1")]) == [True]
    assert adapter.write([put("k", "2", "1")]) == [True]
    assert adapter.write([put("k", "2", "1")]) == [True]
    assert adapter.write([put("k", "1")]) == [False]


def test_many_writes_at_once_are_decided_one_by_one(adapter):
    assert adapter.write([put(f"k{n}", "1") for n in range(0, 40, 2)]) == [True] * 20
    results = adapter.write([put(f"k{n}", "2") for n in range(40)])
    assert results == [n % 2 == 1 for n in range(40)]
    assert stamps(adapter, *(f"k{n}" for n in range(40))) == ["1", "2"] * 20


def test_of_many_writers_of_one_record_one_wins(url, service):
    adapters = [service(url) for _ in range(8)]
    start = threading.Barrier(8)
    won = []

    def write(n):
        start.wait()
        won.extend([n] * sum(adapters[n].write([put("k", f"{n}")])))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert stamps(adapters[0], "k") == [str(won[0])]


def test_hundreds_of_records_are_read_at_once(adapter):
    keys = [f"{n:04}" for n in range(250)]
    for start in range(0, 250, 50):
        adapter.write([put(key, "1", text=key) for key in keys[start : start + 50]])
    names = [CasName(LOCKS, key) for key in [*keys, "absent"]]
    found = adapter.read([*names, *names]).found
    assert {name.key: text.text for name, text in found.items()} == {key: key for key in keys}
    assert adapter.read([]).found == {}


def test_the_time_is_read_after_the_reply(url, service, monkeypatch):
    """A time that was read before could be older than the record that it is compared with."""
    events = []

    def clock():
        events.append("clock")
        return 1

    adapter = service(url, clock=clock)
    adapter.write([put("a", "1"), put("b", "1")])
    send = adapter._requests.send
    monkeypatch.setattr(
        adapter._requests, "send", lambda *args, **request: [send(*args, **request), events.append("reply")][0]
    )
    for keys in (["a"], ["a", "b"]):
        events.clear()
        assert adapter.read([CasName(LOCKS, key) for key in keys]).now == 1
        assert events == ["reply", "clock"]


# ---------------------------------------------------------------- names

ODD = [
    "a",
    "A",
    "a ",
    " a",
    "ä",
    "a\u0308",
    "%",
    "#",
    "a#lock",
    "%23",
    "中",
    "\U0001f600",
    "\uffff",
    "x" * 512,
    "ü" * 256,
]
NAMESPACES = ["a", "A", "a ", "ä", "a#lock", "a%23lock", "%", "n" * 512, "#" * 512]


def test_keys_are_distinct_and_listed_in_the_order_of_code_points(adapter):
    adapter.write([put(key, f"stamp of {n}") for n, key in enumerate(ODD)])
    assert stamps(adapter, *ODD) == [f"stamp of {n}" for n in range(len(ODD))]
    assert adapter.keys(LOCKS, prefix="", after="", limit=100) == sorted(ODD)


def test_an_empty_key_is_a_key_although_dynamodb_has_none(adapter):
    """The item has another sort key, and the empty key in an attribute."""
    try:
        assert adapter.write([put("", "stamp")]) == [True]
    except StoreUnusable as error:
        if "empty string" not in str(error):
            raise
        pytest.skip("this server itself refuses an empty text, as DynamoDB did before May 2020")
    assert stamps(adapter, "", "a") == ["stamp", None]
    assert adapter.keys(LOCKS, prefix="", after="", limit=100) == []  # no key comes before the first


def test_namespaces_and_kinds_are_distinct(url, service):
    adapters = {namespace: service(url, namespace) for namespace in NAMESPACES}
    kinds = [LOCKS, SLOTS, "record/lock", "record/x"]
    for namespace, adapter in adapters.items():
        for kind in kinds:
            assert adapter.write([put("x" * 512, "1", text=f"{namespace}/{kind}", kind=kind)]) == [True]
    for namespace, adapter in adapters.items():
        for kind in kinds:
            assert adapter.keys(kind, prefix="", after="", limit=9) == ["x" * 512]
            name = CasName(kind, "x" * 512)
            assert adapter.read([name]).found[name].text == f"{namespace}/{kind}"


def test_keys_that_are_longer_than_a_sort_key_are_distinct(adapter):
    long = ["x" * 5_000 + end for end in ("", "a", "b", "ä")] + ["ä" * 2_000]
    look_alike = sort_key(long[0])
    keys = [*long, look_alike, "x" * LONGEST_KEY, "x" * (LONGEST_KEY + 1)]
    assert all(len(sort_key(key).encode()) <= 1_024 for key in keys)
    adapter.write([put(key, f"stamp of {n}", kind=SLOTS, due_at=n) for n, key in enumerate(keys)])
    assert stamps(adapter, *keys, kind=SLOTS) == [f"stamp of {n}" for n in range(len(keys))]
    assert set(adapter.keys(SLOTS, prefix="", after="", limit=100)) == set(keys)
    assert adapter.due(SLOTS, until=100, limit=100) == list(enumerate(keys))


@pytest.mark.parametrize("prefix", ["", "b", "bb", "\U0010ffff", "c"])
@pytest.mark.parametrize("after", ["", "a", "b", "bb", "bb1", "bz", "c", "\U0010ffff"])
def test_a_page_has_the_keys_with_the_prefix_after_the_last_one(adapter, prefix, after):
    keys = sorted(["a", "b", "b1", "b2", "bb", "bb1", "bb2", "c", "\U0010ffff", "\U0010ffff\U0010ffff"])
    adapter.write([put(key, "1") for key in keys])
    wanted = [key for key in keys if key.startswith(prefix) and key > after]
    for limit in (1, 2, 100):
        assert adapter.keys(LOCKS, prefix=prefix, after=after, limit=limit) == wanted[:limit]


def test_pages_follow_each_other_also_where_records_are_large(adapter):
    """DynamoDB ends a page after a megabyte, whatever the limit is."""
    keys = [f"{n:02}" for n in range(12)]
    for key in keys:
        adapter.write([put(key, "1", text="x" * 300_000)])
    assert adapter.keys(LOCKS, prefix="", after="", limit=100) == keys
    assert adapter.keys(LOCKS, prefix="0", after="03", limit=100) == keys[4:10]
    names = [CasName(LOCKS, key) for key in keys]
    assert set(adapter.read(names).found) == set(names)


def test_what_is_due_comes_in_the_order_of_its_time(adapter):
    adapter.write(
        [put("late", "1", due_at=30), put("soon", "1", due_at=10), put("never", "1"), put("mid", "1", due_at=20)]
    )
    assert adapter.due(LOCKS, until=20, limit=10) == [(10, "soon"), (20, "mid")]
    assert adapter.due(LOCKS, until=99, limit=1) == [(10, "soon")]
    adapter.write([put("soon", "2", "1"), gone("mid", "1")])
    assert adapter.due(LOCKS, until=99, limit=10) == [(30, "late")]


def test_what_is_due_at_the_same_time_comes_in_the_order_of_its_keys(adapter):
    """An index of DynamoDB has no order of its own there."""
    keys = [f"{n:02}" for n in range(30)]
    for key in reversed(keys):
        adapter.write([put(key, "1", due_at=10)])
    adapter.write([put("zz", "1", due_at=5)])
    for limit in (1, 2, 15, 31, 100):
        assert adapter.due(LOCKS, until=99, limit=limit) == [(5, "zz"), *((10, key) for key in keys)][:limit]


def test_the_largest_record_that_is_accepted_can_be_stored(adapter, service, url):
    largest = put("k" * 512, "1", text="x" * MAX_RECORD)
    assert service(url, "#" * 512).write([largest]) == [True]
    with pytest.raises(StoreUnusable, match="size"):
        adapter.write([put("k", "1", text="x" * 410_000)])


def test_the_keys_of_a_person_at_night_are_those_of_the_layout():
    assert partition("default", LOCKS) == "default#lock"
    assert partition("50% #1", SLOTS) == "50%25 %231#slot"
    assert sort_key("invoice:42") == "invoice:42"


class Spy:
    """A client that notes what it is asked."""

    def __init__(self, client):
        self.client, self.asked = client, []

    def __getattr__(self, name):
        def call(**request):
            self.asked.append((name, request))
            return getattr(self.client, name)(**request)

        return call


def test_every_read_of_the_table_is_strongly_consistent(adapter, monkeypatch):
    """Local servers are consistent in any case, so this looks at the requests. Only the index cannot be."""
    spy = Spy(adapter._requests.client)
    monkeypatch.setattr(adapter._requests, "client", spy)
    stamps(adapter, "a")
    stamps(adapter, "a", "b")
    adapter.keys(LOCKS, prefix="", after="", limit=1)
    adapter.due(LOCKS, until=1, limit=1)
    get, batch, keys, due, *_ = (request for _, request in spy.asked)
    assert get["ConsistentRead"]
    assert keys["ConsistentRead"]
    assert all(part["ConsistentRead"] for part in batch["RequestItems"].values())
    assert due["IndexName"] == "due"


def test_botocore_sends_nothing_twice(adapter):
    assert adapter._requests.client.meta.config.retries["total_max_attempts"] == 1


# ---------------------------------------------------------------- faults


@pytest.fixture
def proxy(url):
    with dynamodb_proxy(url) as made:
        yield made


@pytest.fixture
def through(url, proxy):
    return proxy.url_for(url)


@pytest.mark.parametrize("write", [put("k", "2", "1"), gone("k", "1")], ids=["put", "delete"])
def test_a_write_whose_reply_is_lost_is_unknown_and_sent_once(through, proxy, service, url, write):
    operation = b"PutItem" if write.text else b"DeleteItem"
    adapter = service(through)
    adapter.write([put("k", "1")])
    before = proxy.requests
    proxy.drop_next_reply(operation)
    assert adapter.write([write]) == [None]
    assert proxy.replies_dropped == 1
    assert proxy.requests == before + 1
    assert stamps(service(url), "k") == ["2" if write.text else None]


@pytest.mark.parametrize("operation", [b"GetItem", b"BatchGetItem", b"Query"])
def test_a_read_whose_reply_is_lost_is_sent_again(through, proxy, service, operation):
    adapter = service(through)
    adapter.write([put("k", "1", due_at=1), put("l", "1")])
    proxy.drop_next_reply(operation)
    if operation == b"Query":
        assert adapter.keys(LOCKS, prefix="", after="", limit=9) == ["k", "l"]
    elif operation == b"GetItem":
        assert stamps(adapter, "k") == ["1"]
    else:
        assert stamps(adapter, "k", "l") == ["1", "1"]
    assert proxy.replies_dropped == 1


def test_a_server_that_cannot_be_reached_was_sent_nothing(through, proxy, service):
    adapter = service(through)
    proxy.refuse()
    proxy.cut()
    for call in (lambda: adapter.write([put("k", "1")]), lambda: stamps(adapter, "k")):
        with pytest.raises(StoreUnavailable, match=r"cannot be reached.*Nothing was sent") as caught:
            call()
        assert not caught.value.ambiguous
    proxy.go_on()
    assert adapter.write([put("k", "1")]) == [True]


def test_a_server_that_does_not_answer_leaves_a_write_unknown(through, proxy, service):
    adapter = service(f"{through}&read_timeout=0.2")
    proxy.stall()
    assert adapter.write([put("k", "1")]) == [None]
    with pytest.raises(StoreUnavailable, match="did not answer in time") as caught:
        stamps(adapter, "k")
    assert not caught.value.ambiguous
    proxy.go_on()


def refusal(code, status=400):
    reply = {"Error": {"Code": code, "Message": "so it is"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(reply, "PutItem")


def failing(adapter, monkeypatch, error, times):
    """Let the next requests fail before they are sent: no local server throttles."""
    client, left = adapter._requests.client, [error] * times

    class Failing:
        def __getattr__(self, name):
            def call(**request):
                if left:
                    raise left.pop()
                return getattr(client, name)(**request)

            return call

    monkeypatch.setattr(adapter._requests, "client", Failing())
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)


@pytest.mark.parametrize(
    "code", ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"]
)
def test_a_request_that_is_throttled_is_sent_again(adapter, monkeypatch, code):
    failing(adapter, monkeypatch, refusal(code), 3)
    assert adapter.write([put("k", "1")]) == [True]
    failing(adapter, monkeypatch, refusal(code), 3)
    assert stamps(adapter, "k") == ["1"]


def test_a_request_that_is_throttled_for_too_long_has_done_nothing(adapter, monkeypatch):
    monkeypatch.setattr(module, "THROTTLED_SECONDS", 0.01)
    failing(adapter, monkeypatch, refusal("ThrottlingException"), 1_000)
    for call in (lambda: adapter.write([put("k", "1"), put("l", "1")]), lambda: stamps(adapter, "k")):
        with pytest.raises(StoreUnavailable, match=r"too many.*Nothing was done") as caught:
            call()
        assert not caught.value.ambiguous


def test_keys_that_a_read_left_out_are_read_again(adapter, monkeypatch):
    keys = [f"k{n}" for n in range(20)]
    adapter.write([put(key, "1") for key in keys])
    client, asked = adapter._requests.client, []

    class Busy:
        def batch_get_item(self, RequestItems):  # noqa: N803  (as botocore spells it)
            ((table, wanted),) = RequestItems.items()
            asked.append(len(wanted["Keys"]))
            now = wanted["Keys"][: 0 if len(asked) == 1 else 7]
            answer = {"Responses": {}}
            if now:
                answer = client.batch_get_item(RequestItems={table: wanted | {"Keys": now}})
            rest = wanted["Keys"][len(now) :]
            return answer | {"UnprocessedKeys": {table: wanted | {"Keys": rest}} if rest else {}}

    monkeypatch.setattr(adapter._requests, "client", Busy())
    assert stamps(adapter, *keys) == ["1"] * 20
    assert asked == [20, 20, 13, 6]


def test_a_read_that_is_always_left_out_ends(adapter, monkeypatch):
    class Busy:
        def batch_get_item(self, RequestItems):  # noqa: N803  (as botocore spells it)
            return {"Responses": {}, "UnprocessedKeys": RequestItems}

    monkeypatch.setattr(module, "THROTTLED_SECONDS", 0.05)
    monkeypatch.setattr(adapter._requests, "client", Busy())
    with pytest.raises(StoreUnavailable, match="too many"):
        stamps(adapter, "k", "l")


@pytest.mark.parametrize(
    ("error", "kind", "ambiguous"),
    [
        (refusal("InternalServerError", 500), None, True),
        (refusal("503", 503), None, True),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="x"), None, True),
        (botocore.exceptions.ConnectionClosedError(endpoint_url="x"), None, True),
        (refusal("AccessDeniedException"), StoreUnusable, False),
        (refusal("ExpiredTokenException"), StoreUnusable, False),
        (refusal("ValidationException"), StoreUnusable, False),
        (botocore.exceptions.NoCredentialsError(), StoreUnusable, False),
        (botocore.exceptions.SSLError(endpoint_url="x", error="certificate"), StoreUnusable, False),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="x"), StoreUnavailable, False),
        (botocore.exceptions.ConnectTimeoutError(endpoint_url="x"), StoreUnavailable, False),
    ],
    ids=lambda value: str(value)[:45].replace(" ", "-"),
)
def test_each_error_of_a_write_is_certain_or_unknown(adapter, monkeypatch, error, kind, ambiguous):
    failing(adapter, monkeypatch, error, 1)
    if ambiguous:
        assert adapter.write([put("k", "1")]) == [None]
    else:
        with pytest.raises(kind):
            adapter.write([put("k", "1")])


def test_one_write_that_fails_does_not_make_the_others_fail(adapter, monkeypatch):
    failing(adapter, monkeypatch, refusal("InternalServerError", 500), 1)
    assert sorted(map(str, adapter.write([put(f"k{n}", "1") for n in range(5)]))) == ["None", *["True"] * 4]
    failing(adapter, monkeypatch, refusal("AccessDeniedException"), 1)
    assert sorted(map(str, adapter.write([put(f"l{n}", "1") for n in range(5)]))) == ["False", *["True"] * 4]


def test_what_was_acknowledged_is_there_after_the_server_was_killed(service):
    with real_servers.server("dynamodb") as server:
        adapter = service(server.url)
        for n in range(50):
            assert adapter.write([put(f"k{n:02}", f"{n}")]) == [True]
        server.kill()
        with pytest.raises(StoreUnavailable):
            stamps(adapter, "k00")
        server.restart()
        assert stamps(adapter, *(f"k{n:02}" for n in range(50))) == [str(n) for n in range(50)]
