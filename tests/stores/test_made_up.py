"""A new command, field or type of record needs a rule in Python and nothing else: all work on every store as it is."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules import lock_outcomes as out
from holdfast.rules.record_type import RecordStruct, RecordType
from holdfast.rules.runs.record import Finish, NewRun
from holdfast.stores.native_fields import KnownFields
from holdfast.stores.postgresql import fast_path as postgres_fast_path
from holdfast.stores.redis import fast_path as redis_fast
from holdfast.testing.builders import ME, SECOND, acquire, release


class Painted(out.Outcome, frozen=True, kw_only=True):
    """What a made-up command answers."""

    before: str


class Paint(c.LockCommand, frozen=True, kw_only=True):
    """Give a lock a colour, which is a field that no store has ever heard of."""

    colour: str

    def apply(self, record, now):
        if not isinstance(self.colour, str):
            raise TypeError("a colour is text")
        fields = dict(record.unknown or {})
        before = fields.get("colour", "")
        return replace(record, unknown={**fields, "colour": self.colour}, version=record.version + 1), Painted(
            before=before
        )


class Hurry(r.RunCommand, frozen=True, kw_only=True):
    """Raise the priority of a run, and tell its parent."""

    run: str

    def apply(self, repo, now):
        run = repo.run(self.run)
        if run is None:
            return Painted(before="nothing")
        parent = repo.run(run.parent)
        repo.save(replace(run, priority=run.priority + 1))
        repo.save(replace(parent, attributes={**parent.attributes, "hurried": run.id}))
        return Painted(before=str(run.priority))


HELD = c.Acquire(key="k", id="a.1", label=ME, ttl=SECOND)
RECORDED = r.RecordRun(run="r", fence=1, at=1, request="q.1", then=Finish("completed", "1"))
STARTED = r.StartRun(new=NewRun(id="r", type="order", input="1", request="q.1"), worker="w.1")
NATIVE = {
    "Acquire": (HELD, ()),
    "Renew": (c.Renew(key="k", id="a.1", token=1, ttl=SECOND), ()),
    "Release": (c.Release(key="k", id="a.1", token=1), ()),
    "RecordRun": (RECORDED, ()),
    "Finish": (RECORDED, ("then",)),
    "StartRun": (STARTED, ()),
    "NewRun": (STARTED, ("new",)),
}
"""Commands for which there are native forms, and where in them the made-up field is."""
FORMS = {
    "redis": (redis_fast, lambda command: redis_fast.asked([command]) is not None, "_ROWS"),
    "postgres": (
        postgres_fast_path,
        lambda command: postgres_fast_path.parts_of([command], ())[0].form is not None,
        "_FORMS",
    ),
}


def with_one_more_field(value, **made_up):
    """The same value, of a type that has one more field."""
    fields = [("zone", str, "")]
    kind = msgspec.defstruct(type(value).__name__, fields, bases=(type(value),), frozen=True, kw_only=True)
    return kind(**{name: getattr(value, name) for name in value.__struct_fields__}, **made_up)


@pytest.mark.parametrize("store", FORMS)
@pytest.mark.parametrize("name", NATIVE)
def test_no_native_form_takes_a_field_that_it_does_not_know(store, name, monkeypatch):
    """The forms are made to know the type with one more field, as if the field had been added to the type itself."""
    (module, is_native, table), (command, path) = FORMS[store], NATIVE[name]
    old = getattr(command, path[0]) if path else command
    for made_up, native in (({}, True), ({"zone": "eu"}, False)):
        new = with_one_more_field(old, **made_up)
        known = {(type(new) if kind is type(old) else kind): names for kind, names in module.KNOWN.items()}
        monkeypatch.setattr(module, "_known", KnownFields(known))
        forms = getattr(module, table)
        if type(old) in forms:
            monkeypatch.setitem(forms, type(new), forms[type(old)])
        asked = replace(command, **{path[0]: new}) if path else new
        assert is_native(asked) is native, made_up


@pytest.mark.parametrize("store", FORMS)
def test_native_forms_name_only_fields_that_there_are(store):
    for kind, names in FORMS[store][0].KNOWN.items():
        assert set(names) <= set(kind.__struct_fields__)


def test_a_made_up_command_and_a_made_up_field_work(opened, url, clock):
    connection = opened(url, clock=clock).connect("commands")
    assert connection.execute([Paint(key="k", colour="red")]) == [Painted(before="")]
    (granted,) = connection.execute([acquire("k", "a.1")])
    batch = [Paint(key="k", colour="green"), acquire("k", "b.1", queue=True), Paint(key="other", colour="blue")]
    painted, queued, fresh = connection.execute(batch)
    assert (painted.before, queued.position, fresh.before) == ("red", 0, "")
    (released,) = connection.execute([release("k", "a.1", token=granted.token)])
    assert released.woken == ("b.1",)
    (confirmed,) = connection.execute([acquire("k", "b.1", queue=True)])
    assert confirmed.token > granted.token
    (seen,) = connection.execute([c.Inspect(key="k")])
    assert seen.record.unknown == {"colour": "green"}
    (renewed,) = connection.execute([c.Renew(key="k", id="b.1", token=confirmed.token, ttl=SECOND)])
    assert isinstance(renewed, out.Renewed)
    assert connection.execute([Paint(key="k", colour="")])[0].before == "green"


def test_a_made_up_command_about_runs_works(opened, url, clock):
    store = opened(url, clock=clock)
    if not store.capabilities.workflows:
        pytest.skip("this store has no workflows")
    connection = store.connect("commands")
    parent = NewRun(id="parent", type="order", input="1", request="q.1")
    child = NewRun(id="child", type="order", input="1", request="q.2", parent="parent")
    outcomes = connection.execute(
        [r.StartRun(new=parent), r.StartRun(new=child), Hurry(run="child"), Hurry(run="nobody")]
    )
    assert outcomes[2:] == [Painted(before="0"), Painted(before="nothing")]
    assert connection.execute([Hurry(run="child")]) == [Painted(before="1")]
    (seen,) = connection.execute([r.ReadRun(run="parent")])
    assert seen.claim.run.attributes == {"hurried": "child"}


def test_a_made_up_command_that_fails_takes_nobody_along(opened, url, clock):
    connection = opened(url, clock=clock).connect("commands")
    batch = [acquire("a", "a.1"), Paint(key="b", colour=object()), acquire("c", "a.1"), Paint(key="c", colour="red")]
    outcomes = connection.execute(batch)
    assert [type(one).__name__ for one in outcomes] == ["Granted", "Failed", "Granted", "Painted"]


class Basket(RecordStruct, frozen=True):
    """A made-up type of record."""

    apples: int = 0
    ripe_at: int | None = None


BASKET = RecordType("basket", Basket, due="ripe_at")


class PutApple(c.RecordCommand, frozen=True, kw_only=True):
    """Put an apple into a basket; with the last of three, the basket is gone and its owner is woken."""

    record_type = BASKET
    owner: str

    def apply(self, record, now):
        apples = (record or Basket()).apples + 1
        if apples == 3:
            return None, Painted(before=str(apples - 1), woken=(self.owner,))
        return Basket(apples=apples, ripe_at=now), Painted(before=str(apples - 1))


def test_a_made_up_type_of_record_needs_a_name_a_struct_and_a_rule(opened, url, clock):
    connection = opened(url, clock=clock).connect("commands")
    put = [PutApple(key=key, owner="a.1") for key in ("x", "y", "x", "x", "x")]
    assert [outcome.before for outcome in connection.execute(put)] == ["0", "0", "1", "2", "0"]
    listed, due = connection.execute([c.ListRecords(kind="basket", prefix="x"), c.ListDueRecords(kind="basket")])
    assert [(item.key, item.record.apples) for item in listed.items] == [("x", 1)]
    assert [item.key for item in due.items] == ["x", "y"]
    (_, last) = connection.execute(put[:1] * 2)
    assert last.woken == ("a.1",)
