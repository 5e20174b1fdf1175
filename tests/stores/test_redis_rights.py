"""Rights of a user in a Redis: a missing right is an error when the first connection is opened."""

from __future__ import annotations

import pytest
import real_servers
import redis
from providers import REDISES

from holdfast.errors import StoreUnusable
from holdfast.stores.redis import permissions as redis_rights
from holdfast.testing.builders import acquire
from stores.redis_atomicity import commands_of_the_scripts


@pytest.fixture(scope="module", params=REDISES, ids=lambda provider: provider.name)
def own(request):
    with real_servers.server(request.param.name, settings={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def operator(own, monkeypatch):
    monkeypatch.setattr(redis_rights, "_known", set())
    with redis.Redis(port=own.port, decode_responses=True) as client:
        client.flushall()
        yield client
        client.execute_command("ACL", "DELUSER", "app")


@pytest.mark.parametrize("name", redis_rights.NEEDED)
def test_a_user_that_lacks_a_command_is_refused_at_connecting_with_its_name(own, operator, opened, name):
    operator.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", f"-{name}")
    store = opened(own.url.replace("redis://", "redis://app:pw@"))
    with pytest.raises(StoreUnusable, match=rf"does not allow this user {name},.*ACL SETUSER <user> \+{name.lower()} "):
        store.connect("commands")
    (finding,) = (finding for finding in store.diagnose() if finding.check == "rights")
    assert (finding.level, name in finding.detail) == ("problem", True)
    assert operator.keys("*") == [], "to ask leaves nothing behind"
    operator.execute_command("ACL", "SETUSER", "app", f"+{name}")
    store.connect("commands").execute([acquire()])


def test_all_commands_of_the_scripts_are_in_the_list_of_required_rights(operator):
    assert commands_of_the_scripts(operator) == set(redis_rights.NEEDED)


def test_a_user_whose_rights_cannot_be_read_gets_the_error_from_the_first_command(own, operator, opened):
    operator.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-eval", "-evalsha")
    store = opened(own.url.replace("redis://", "redis://app:pw@"))
    assert {finding.check: finding.level for finding in store.diagnose()}["rights"] == "warning"
    (failed,) = store.connect("commands").execute([acquire()])
    assert isinstance(failed.error, StoreUnusable)
    assert "docs/stores/redis.md" in str(failed.error)
