"""The table of a DynamoDB store: its URL, its creation and settings, its health, and the queries of the docs page."""

from __future__ import annotations

import json
import logging
import re
import shlex
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import boto3
import botocore.exceptions
import jmespath
import pytest
import real_servers
from commandline import answer, failure, holdfast
from providers import dynamodb_client, dynamodb_url

from holdfast import Client
from holdfast.errors import HoldfastError, InvalidOption, StoreUnavailable, StoreUnusable
from holdfast.platform import host_clock
from holdfast.stores import open_store, unready
from holdfast.stores.dynamodb import health
from holdfast.stores.dynamodb import table as table_module
from holdfast.stores.dynamodb.address import address_of_url
from holdfast.stores.dynamodb.errors import store_error
from holdfast.stores.dynamodb.layout import definition
from holdfast.stores.dynamodb.store import DynamoService
from holdfast.testing.builders import acquire

NAMESPACE = "default"
PAGE = Path(__file__).parents[2] / "docs" / "stores" / "dynamodb.md"


@pytest.fixture
def own():
    """A server of this test's own, without tables."""
    with real_servers.server("dynamodb") as server:
        yield server


@pytest.fixture
def service():
    made = []

    def opening(url, namespace=NAMESPACE, clock=host_clock):
        one = DynamoService(address_of_url(url), namespace, clock, url=url)
        made.append(one)
        adapter = one.connect()
        made.append(adapter)
        return one

    yield opening
    for one in reversed(made):
        one.close()


# ---------------------------------------------------------------- URLs


def test_a_url_states_region_table_and_options():
    address = address_of_url(
        "dynamodb://eu-central-1/my.table-1?endpoint=http://localhost:8000/&create=true&skew=500ms&read_timeout=2"
    )
    assert (address.region, address.table, address.endpoint) == ("eu-central-1", "my.table-1", "http://localhost:8000")
    assert (address.create, address.skew, address.expiry) == (True, 500_000, None)
    assert (address.read_timeout, address.connect_timeout) == (2.0, 3.0)


def test_the_region_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ap-south-1")
    assert address_of_url("dynamodb:///locks").region == "ap-south-1"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("dynamodb://eu-central-1", "must name a table"),
        ("dynamodb://eu-central-1/ab", "3 to 255"),
        ("dynamodb://eu-central-1/a/b", "must name a table"),
        ("dynamodb://host:8000/locks", r"the host .* is the region.*endpoint"),
        ("dynamodb://eu-central-1/locks?consistent=false", "no option consistent"),
        ("dynamodb://eu-central-1/locks?skew=soon", "skew"),
        ("dynamodb://eu-central-1/locks?skew=2h", "at most 3600 s"),
        ("dynamodb://eu-central-1/locks?create=maybe", "true or false"),
        ("dynamodb://eu-central-1/locks?expiry=never", "clock or observed"),
        ("dynamodb://eu-central-1/locks?expiry=observed&skew=2", "no meaning"),
        ("dynamodb://eu-central-1/locks?endpoint=localhost", "http or https"),
        ("dynamodb://eu-central-1/locks?endpoint=http://me:hush@localhost", "credentials"),
        ("dynamodb://eu-central-1/locks?read_timeout=0", "longer than 0"),
        ("dynamodb://eu-central-1/locks?profile=nobody", "profile"),
        ("dynamodb://hush@eu-central-1/locks", "access-key:secret-key@"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_the_reason(url, message):
    with pytest.raises(InvalidOption, match=message) as caught:
        open_store(url, namespace=NAMESPACE)
    assert "hush" not in str(caught.value)


def test_two_urls_of_one_table_have_the_same_identity(own):
    one, two = (
        open_store(url, namespace=NAMESPACE)
        for url in (own.url, own.url.replace("create=true", "read_timeout=9").replace("127.0.0.1", "localhost"))
    )
    assert one.identity == two.identity
    assert one.identity != open_store(own.url, namespace="other").identity
    assert one.identity != open_store(own.url.replace("/holdfast", "/other"), namespace=NAMESPACE).identity


def test_a_session_of_boto3_is_used_with_its_credentials(own):
    session = boto3.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="eu-west-1")
    options = {"table": "of-a-session", "endpoint": own.endpoint, "create": True, "skew": 1}
    with Client(session, store_options=options) as hf, hf.lock("k") as lease:
        assert lease.token
        assert hf.url == f"dynamodb://127.0.0.1:{own.port}/of-a-session"
    with pytest.raises(InvalidOption, match="table="):
        Client(session)
    with pytest.raises(InvalidOption, match="no option colour"):
        Client(session, store_options={"table": "locks", "colour": "red"})


def test_no_secret_is_shown_anywhere(own, caplog, service):
    secret = "wJalrXUtnFEMI"
    url = own.url.replace("test:test@", f"AKIDEXAMPLE:{secret}@")
    with caplog.at_level(logging.DEBUG, logger="holdfast"):
        store = open_store(url, namespace=NAMESPACE)
        connection = store.connect("commands")
        shown = [
            repr(store),
            store.url,
            store.identity,
            repr(store.service),
            repr(address_of_url(url)),
            repr(connection),
        ]
        own.kill()
        try:
            connection.execute([acquire()])
        except HoldfastError as error:
            shown += [str(error), *traceback.format_exception(error)]
        shown += [finding.detail + finding.advice for finding in store.diagnose()]
        connection.close()
        store.close()
    assert len(shown) > 7
    assert not [text for text in [*shown, caplog.text] if secret in text]


def test_without_credentials_the_reason_is_given_and_nothing_is_sent(own, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    store = open_store(own.url.replace("test:test@", ""), namespace=NAMESPACE)
    with pytest.raises(StoreUnusable, match=r"no credentials.*Nothing was sent"):
        store.connect("commands")
    store.close()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from")
    store = open_store(own.url.replace("test:test@", ""), namespace=NAMESPACE)
    with pytest.raises(StoreUnusable, match=r"no credentials.*[Pp]artial"):
        store.connect("commands")
    store.close()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the environment")
    with Client(own.url.replace("test:test@", "")) as hf, hf.lock("k"):
        pass


# ---------------------------------------------------------------- creation and settings


def test_a_table_that_is_missing_is_created_only_if_the_url_says_so(service):
    with real_servers.server("dynamodb") as server:
        without = server.url.replace("&create=true", "")
        with pytest.raises(StoreUnusable, match=r"no such table.*create=true"):
            service(without)
        service(server.url)
        service(without)
        with dynamodb_client(server.url) as (client, name):
            described = client.describe_table(TableName=name)["Table"]
        assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_clients_that_create_the_table_at_once_all_use_it(service):
    with real_servers.server("dynamodb") as server:
        found = []
        threads = [threading.Thread(target=lambda: found.append(service(server.url))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 6
        assert len({one._settings for one in found}) == 1


@pytest.mark.parametrize(
    ("stated", "other"), [("skew=1", "skew=2"), ("skew=0", "skew=1"), ("skew=1", "expiry=observed")]
)
def test_a_client_with_other_settings_than_those_of_the_table_is_refused(service, stated, other):
    with real_servers.server("dynamodb") as server:
        service(f"{server.url}&{stated}")
        with pytest.raises(StoreUnusable, match=f"is used with {'expiry' if 'expiry' in other else 'skew'}"):
            service(f"{server.url}&{other}")
        service(f"{server.url}&{stated}")


def test_a_client_that_states_no_settings_takes_those_of_the_table():
    with real_servers.server("dynamodb") as server:
        for options, wanted in (("&skew=7.5", 7_500_000), ("", 7_500_000)):
            one = DynamoService(address_of_url(server.url + options), NAMESPACE, host_clock, url="")
            one.connect().close()
            assert one._settings.skew == wanted
            one.close()


def test_the_default_is_a_skew_of_two_seconds():
    with real_servers.server("dynamodb") as server:
        one = DynamoService(address_of_url(server.url), NAMESPACE, host_clock, url="")
        one.connect().close()
        one.close()
        with dynamodb_client(server.url) as (client, name):
            item = client.get_item(TableName=name, Key=table_module.SETTINGS_KEY)["Item"]
    assert (item["skew"]["N"], item["expiry"]["S"], item["layout"]["N"]) == ("2000000", "clock", "1")


def test_a_table_of_a_newer_version_is_refused(service):
    with real_servers.server("dynamodb") as server:
        service(server.url)
        with dynamodb_client(server.url) as (client, name):
            item = client.get_item(TableName=name, Key=table_module.SETTINGS_KEY)["Item"]
            client.put_item(TableName=name, Item=item | {"layout": {"N": "2"}})
        with pytest.raises(StoreUnusable, match=r"layout 2.*Upgrade"):
            service(server.url)


def test_a_reading_command_neither_creates_a_table_nor_stores_settings(own):
    assert "creates none" in unready(own.url)
    with dynamodb_client(own.url) as (client, name):
        assert client.list_tables()["TableNames"] == []
        client.create_table(**definition(name))
        client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
        assert "no client has used it yet" in unready(own.url)
        assert client.scan(TableName=name)["Items"] == []
    open_store(own.url, namespace=NAMESPACE).connect("commands").close()
    assert unready(own.url) is None


# ---------------------------------------------------------------- health


def levels(url, clock=host_clock):
    return {finding.check: finding for finding in health.diagnose(address_of_url(url), clock)}


def test_a_sound_table_is_reported_as_such(own, service):
    service(own.url)
    found = levels(own.url)
    assert list(found) == ["table", "settings", "ttl", "protection", "backups", "clock"]
    assert {check for check, finding in found.items() if finding.level == "ok"} == {"table", "settings", "ttl", "clock"}
    assert "2 s" in found["settings"].detail
    assert all(finding.advice for finding in found.values() if finding.level != "ok")
    assert f"--table-name {address_of_url(own.url).table} " in found["protection"].advice


def test_a_table_whose_items_expire_is_a_problem(own, service):
    service(own.url)
    with dynamodb_client(own.url) as (client, name):
        specification = {"Enabled": True, "AttributeName": "due_at"}
        client.update_time_to_live(TableName=name, TimeToLiveSpecification=specification)
    assert levels(own.url)["ttl"].level == "problem"
    assert "due_at" in levels(own.url)["ttl"].detail


def test_a_table_that_is_protected_is_reported_as_such(own, service):
    service(own.url)
    with dynamodb_client(own.url) as (client, name):
        client.update_table(TableName=name, DeletionProtectionEnabled=True)
    assert levels(own.url)["protection"].level == "ok"


@pytest.mark.parametrize(("ahead", "level"), [(0, "ok"), (30, "warning"), (-30, "warning")])
def test_a_clock_that_is_wrong_is_a_warning(own, service, ahead, level):
    service(own.url)
    clock = levels(own.url, lambda: host_clock() + ahead * 1_000_000)["clock"]
    assert clock.level == level
    if ahead:
        assert ("ahead of" if ahead > 0 else "behind") in clock.detail


def test_with_observation_a_wrong_clock_is_no_fault(own, service):
    service(f"{own.url}&expiry=observed")
    found = levels(own.url, lambda: host_clock() + 3_600_000_000)
    assert found["clock"].level == "ok"
    assert "by observation" in found["settings"].detail


def test_a_client_whose_clock_is_wrong_logs_a_warning(own, caplog, monkeypatch):
    wrong = lambda: host_clock() + 60_000_000  # noqa: E731
    monkeypatch.setattr(table_module, "host_clock", wrong)
    one = DynamoService(address_of_url(own.url), NAMESPACE, wrong, url="")
    one.connect().close()
    one.close()
    assert re.search(r"the clock of this host is about \d+\.\d s ahead of .* Synchronise", caplog.text)


def test_a_table_with_provisioned_capacity_or_other_keys_is_reported(own):
    with dynamodb_client(own.url) as (client, name):
        wanted = definition(name) | {"BillingMode": "PROVISIONED"}
        capacity = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5}
        for part in (wanted, wanted["GlobalSecondaryIndexes"][0]):
            part["ProvisionedThroughput"] = capacity
        client.create_table(**wanted)
        client.create_table(
            TableName="another",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
            KeySchema=wanted["KeySchema"],
        )
        for table in (name, "another"):
            client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1})
    assert levels(own.url)["table"].level == "warning"
    assert levels(own.url.replace("/holdfast?", "/another?"))["table"].level == "problem"
    (missing,) = levels(own.url.replace("/holdfast?", "/missing?")).values()
    assert missing.level == "problem"
    assert "no such table" in missing.detail


def test_a_server_that_is_gone_is_a_finding(own):
    url = own.url
    own.kill()
    (finding,) = levels(url).values()
    assert (finding.level, finding.check) == ("problem", "table")
    assert "cannot be reached" in finding.detail


# ---------------------------------------------------------------- what the page says


def commands_of_the_page():
    text = PAGE.read_text().replace("\\\n", " ")
    return [line.strip().removeprefix("$ ") for line in text.splitlines() if line.strip().startswith("$ aws dynamodb")]


def run(client, table, line):
    """Carry out a command of the AWS CLI with botocore, which the CLI uses, too."""
    _, _, operation, *words = shlex.split(line)
    request, query = {}, "@"
    while words:
        name = words.pop(0).removeprefix("--")
        value = True if not words or words[0].startswith("--") else words.pop(0)
        if name == "query":
            query = value
        elif name != "output":
            given = json.loads(value) if isinstance(value, str) and value[:1] in "{[" else value
            request["".join(part.capitalize() for part in name.split("-"))] = given
    assert request.pop("TableName") == "holdfast"
    answer = getattr(client, operation.replace("-", "_"))(TableName=table, **request)
    return jmespath.search(query, answer)


def test_the_queries_of_the_page_show_what_they_promise():
    url = dynamodb_url("skew2", "skew=2")
    with Client(url, name="billing") as hf, hf.lock("invoice:42", ttl=30) as lease:
        hf.lock("invoice:43").acquire().release()
        hf.state("count").set(7)
        waiting = threading.Thread(target=lambda: hf.lock("invoice:42", wait=30).acquire().release())
        waiting.start()
        with dynamodb_client(url) as (client, table):
            record, keys, settings, slot, *due = (run(client, table, line) for line in commands_of_the_page()[:4])
            holder = json.loads(record)["holders"][0]
            assert (holder["token"], holder["label"]["name"]) == (lease.token, "billing")
            assert (holder["ttl"], keys) == (32_000_000, ["invoice:42", "invoice:43"])
            assert settings["skew"]["N"] == "2000000"
            assert json.loads(slot)["value"] == "7"
            assert due == []
        lease.release()
        waiting.join()


def test_every_error_of_the_page_is_mapped_as_it_says():
    rows = re.findall(r"^\| (`[^|]+`) \| (unavailable|unusable) \| (yes|no) \|$", PAGE.read_text(), re.MULTILINE)
    seen = 0
    for names, kind, ambiguous in rows:
        for name in re.findall(r"`(\w+)`", names):
            status = 500 if name.startswith("Internal") or name == "ServiceUnavailable" else 400
            reply = {"Error": {"Code": name, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
            made = store_error(botocore.exceptions.ClientError(reply, "PutItem"), "here")
            assert isinstance(made, StoreUnavailable if kind == "unavailable" else StoreUnusable), name
            assert made.ambiguous == (ambiguous == "yes"), name
            seen += 1
    assert seen > 10


# ---------------------------------------------------------------- the command line


def test_the_command_line_lists_releases_and_checks(own):
    without = failure(holdfast("locks", "list", url=own.url.replace("&create=true", "")), 1)
    assert "there is no table" in without
    assert "add ?create=true to the URL of the application" in without
    assert "first client that opens the store with ?create=true" in failure(holdfast("locks", "list", url=own.url), 1)
    with Client(own.url) as hf:
        lease = hf.lock("invoice:42").acquire()
        assert "invoice:42" in holdfast("locks", "list", url=own.url).stdout
        checks = [one["check"] for one in answer(holdfast("doctor", "--json", url=own.url))["findings"]]
        assert checks.count("clock") == 1
        assert "ttl" in checks
        done = holdfast("locks", "release", "invoice:42", "--reason", "test", "--yes", url=own.url)
        assert done.exit_code == 0, done.output
        assert not hf.locks.inspect("invoice:42").held
        with suppress(HoldfastError):
            lease.release()
