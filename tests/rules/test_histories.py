"""Random histories of one lock: the rules, the invariants, and a naive model must agree."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock import LockState
from holdfast.rules.lock_record import EMPTY, Label, decode, encode

from .harness import HOUR, SECOND, T0
from .hypothesis_settings import SEARCHING, histories
from .invariants import Asked, step_violations, violations
from .model import Model

ids = st.sampled_from("abcde")
ttls = st.sampled_from([7 * SECOND, HOUR, 2 * SECOND, SECOND, None])
lengths = st.sampled_from([SECOND, 3 * SECOND, 10 * SECOND])
permits = st.sampled_from([2, 2, 2, 2, 2, 1, 3])
weights = st.sampled_from([1, 1, 2, 1, 3])
delays = st.sampled_from([0, 0, 0, SECOND, 20 * SECOND])
holders = st.integers(0, 2) | ids  # a number stands for the n-th holder, where there is one
waiters = st.integers(0, 2) | ids
tokens = st.sampled_from(["current", "reported", "current", "reported", "wrong", "none"])
mostly = st.sampled_from([True, True, True, True, True, True, False])

SEEN: Counter[str] = Counter()
LONG_HISTORIES = 10_000 if SEARCHING else 200
COMMON = ["Granted", "Queued", "Busy", "Renewed", "Released", "Abandoned", "NotHolder", "Settled"]
UNCOMMON = [
    "Transferred", "TargetHolds", "Mismatch", "TooHeavy", "Gone", "ForceReleased", "woken", "closed",
    "permits changed", "never fits", "removable", "PassedOver", "hinted", "passed over",
]  # fmt: skip


class History(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.record, self.now, self.reported = EMPTY, T0, {}

    @initialize(kind=st.sampled_from(["semaphore", "semaphore", "lease"]), offers=mostly)
    def begin(self, kind, offers):
        self.kind, self.offers, self.model = kind, offers, Model(offers=offers)

    @rule(id=ids, permits=permits, weight=weights, ttl=ttls, patience=ttls, same_kind=mostly, delay=delays)
    def wait(self, *, same_kind, patience, **fields):
        self.acquire(queue=True, kind=self.kind if same_kind else "rw", waiter_ttl=patience, **fields)

    @rule(id=ids, permits=permits, weight=weights, ttl=ttls, patience=ttls, same_kind=mostly, delay=delays)
    def attempt(self, *, same_kind, patience, **fields):
        self.acquire(queue=False, kind=self.kind if same_kind else "rw", waiter_ttl=patience, **fields)

    def acquire(self, *, id, **fields):
        answer = self.step("Acquire", LockState.acquire, {"label": Label(id)}, id=id, **fields)
        if isinstance(answer, out.Granted):
            self.reported[id] = answer.token

    @rule(who=holders, which=tokens, ttl=ttls)
    def renew(self, who, which, ttl):
        id = nth(self.record.holders, who)
        self.step("Renew", LockState.renew, id=id, token=self.token(id, which), ttl=ttl)

    @rule(who=holders, which=tokens)
    def release(self, who, which):
        id = nth(self.record.holders, who)
        self.step("Release", LockState.release, id=id, token=self.token(id, which))

    @rule(who=holders, which=tokens)
    def pass_over(self, who, which):
        id = nth([one for one in self.record.holders if one.offered] or self.record.holders, who)
        self.step("PassOver", LockState.pass_over, id=id, token=self.token(id, which))

    @rule(who=waiters, ttl=lengths)
    def abandon(self, who, ttl):
        self.step("Abandon", LockState.abandon, id=nth(self.record.waiters, who), ttl=ttl)

    @rule(who=holders, which=tokens, to=waiters, ttl=ttls)
    def transfer(self, who, which, to, ttl):
        id, to = nth(self.record.holders, who), nth(self.record.waiters, to)
        token = self.token(id, which)
        self.step("Transfer", LockState.transfer, {"to_label": Label(to)}, id=id, token=token, to_id=to, ttl=ttl)

    @rule(what=st.sampled_from(["settle", "settle", "store", "force"]))
    def something_rare(self, what):
        if what == "settle":
            self.step("Settle", LockState.settled)
        elif what == "store":
            self.record = decode("k", encode(self.record))
        else:
            self.step("ForceRelease", LockState.force_release, {"by": "ada", "reason": "stuck"})

    @rule(how=st.sampled_from(["a while", "to an end", "to an end", "set"]), pick=st.integers(0, 9))
    def time_passes(self, how, pick):
        """Some time, or exactly to (or just before or after) an expiry, or the clock is set."""
        things = [*self.record.holders, *self.record.waiters, *self.record.tombstones]
        ends = sorted({one.expires_at for one in things if one.expires_at is not None})
        ends += [self.record.closed_until] if self.record.closed_until else []
        if how == "set":
            self.now += (-HOUR, -SECOND, HOUR)[pick % 3]
        elif how == "to an end" and ends:
            self.now = max(self.now, ends[pick // 3 % len(ends)] + (0, -1, 1)[pick % 3])
        else:
            self.now += (1, SECOND // 2, SECOND, 5 * SECOND)[pick % 4]

    def token(self, id, which):
        held = next((holder.token for holder in self.record.holders if holder.id == id), T0)
        return {"reported": self.reported.get(id, T0), "current": held, "wrong": held + 1, "none": None}[which]

    def step(self, verb, decide, unseen=None, /, **fields):
        before = self.record
        working = LockState(before, self.now, offers=self.offers)
        answer = working.answer(lambda one: decide(one, **(unseen or {}), **fields))
        self.record = working.record()
        asked = Asked(verb=verb, id=fields.get("id", ""), token=fields.get("token"), to_id=fields.get("to_id", ""))
        problems = step_violations(before, asked, self.record, answer, self.now)
        problems += violations(self.record, self.now, offers=self.offers)
        assert not problems, problems
        expected = self.model.do(self.now, MODEL_VERBS[verb], **fields)
        assert reported(answer) == expected
        assert view(self.record) == self.model.view()
        self.removal_would_be_harmless()
        SEEN[expected[0]] += 1
        SEEN["woken"] += len(answer.woken)
        SEEN["hinted"] += len(answer.hinted)
        SEEN["passed over"] += sum(one.passed for one in self.record.waiters)
        SEEN["missed twice"] += any(one.missed > 1 for one in self.record.waiters)
        SEEN["closed"] += bool(self.record.closed_until)
        SEEN["permits changed"] += getattr(answer, "permits_before", None) is not None
        SEEN["never fits"] += any(stone.reason == "never_fits" for stone in self.record.tombstones)
        return answer

    def removal_would_be_harmless(self):
        """A removable record has no effect any more, and the next token of its key is higher."""
        if lock.removable(self.record, self.now, retention=SECOND):
            SEEN["removable"] += 1
            record = self.record
            assert record.idle
            assert (record.tombstones, record.closed_until) == ((), 0)
            assert lock.next_token(0, self.now) > record.fence + SECOND


def nth(things, who):
    if isinstance(who, str):
        return who
    return things[who % len(things)].id if things else "a"


MODEL_VERBS = {
    "Acquire": "acquire",
    "Renew": "renew",
    "Release": "release",
    "Abandon": "abandon",
    "PassOver": "pass_over",
    "Transfer": "transfer",
    "ForceRelease": "force_release",
    "Settle": "just_settle",
}


def reported(answer) -> tuple:
    """An outcome in the form that the model returns."""
    name = type(answer).__name__
    parts = {
        "Granted": lambda: (answer.token, answer.expires_at),
        "Queued": lambda: (answer.position,),
        "Busy": lambda: ([holder.token for holder in answer.holders], answer.waiting),
        "Renewed": lambda: (answer.expires_at,),
        "Abandoned": lambda: (answer.was,),
        "Transferred": lambda: (answer.token, answer.expires_at),
        "Mismatch": lambda: (answer.found,),
        "TooHeavy": lambda: (answer.permits,),
        "ForceReleased": lambda: ([holder.id for holder in answer.holders],),
    }.get(name, tuple)()
    return name, parts, answer.woken, answer.hinted


def view(record) -> tuple:
    """A record in the form of the model."""
    return (
        record.kind,
        record.permits,
        record.fence,
        [
            (one.id, one.token, one.weight, one.ttl, one.expires_at, one.offered, one.delay, place(one))
            for one in record.holders
        ],
        [(one.id, one.weight, one.ttl, one.expires_at, one.delay, one.missed, one.passed) for one in record.waiters],
        [(stone.id, stone.expires_at, stone.ttl, stone.reason) for stone in record.tombstones],
        (record.closed_until, record.closed_for),
        record.due_at,
    )


def place(holder):
    return None if holder.place is None else (holder.place.ttl, holder.place.expires_at)


def test_rules_invariants_and_model_agree_on_searched_histories():
    SEEN.clear()
    run_state_machine_as_test(History, settings=histories)
    assert_often_enough(COMMON, at_least=5)


def test_rules_invariants_and_model_agree_on_long_histories_with_many_attempts():
    """Hypothesis finds and shrinks edge cases; many attempts with plausible commands lead to longer queues."""
    SEEN.clear()
    for seed in range(LONG_HISTORIES):
        ManyAttempts(seed).play()
    assert_often_enough(COMMON + UNCOMMON, at_least=LONG_HISTORIES // 4)
    assert_often_enough(["missed twice"], at_least=LONG_HISTORIES // 40)


class ManyAttempts:
    """Seven attempts that mostly do what makes sense, for 120 steps."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.history = History()
        self.history.begin(kind=self.pick("semaphore", "semaphore", "lease"), offers=self.random.random() < 0.85)
        self.permits = self.random.randint(1, 4)
        self.log = [f"seed {seed}"]

    def play(self):
        moves = [self.ask, self.renew, self.release, self.pass_over, self.abandon, self.transfer, self.rare, self.time]
        for move in self.random.choices(moves, weights=[40, 10, 14, 12, 4, 8, 3, 14], k=120):
            name, fields = move()
            self.log.append(f"{name}({fields})")
            try:
                getattr(self.history, name)(**fields)
            except AssertionError as error:
                error.add_note("\n".join(self.log))
                raise

    def pick(self, *choices):
        return self.random.choice(choices)

    def ttl(self):
        return self.pick(7 * SECOND, HOUR, 2 * SECOND, SECOND, None)

    def who(self):
        return self.random.randint(0, 3) if self.random.random() < 0.7 else self.pick(*"abcdefg")

    def which(self):
        return self.random.choices(["current", "reported", "wrong", "none"], weights=[6, 3, 1, 1])[0]

    def ask(self):
        return self.pick("wait", "wait", "wait", "attempt"), {
            "id": self.pick(*"abcdefg"),
            "permits": self.permits if self.random.random() < 0.95 else self.random.randint(1, 4),
            "weight": self.pick(1, 1, 1, 2, 3),
            "ttl": self.ttl(),
            "patience": self.ttl(),
            "same_kind": self.random.random() < 0.97,
            "delay": self.pick(*[0] * 8, SECOND, 20 * SECOND),
        }

    def renew(self):
        return "renew", {"who": self.who(), "which": self.which(), "ttl": self.ttl()}

    def release(self):
        return "release", {"who": self.who(), "which": self.which()}

    def pass_over(self):
        return "pass_over", {"who": self.who(), "which": self.which()}

    def abandon(self):
        return "abandon", {"who": self.who(), "ttl": self.pick(SECOND, 3 * SECOND)}

    def transfer(self):
        return "transfer", {"who": self.who(), "which": self.which(), "to": self.who(), "ttl": self.ttl()}

    def rare(self):
        return "something_rare", {"what": self.pick(*["settle"] * 6, *["store"] * 4, "force")}

    def time(self):
        how = self.random.choices(["a while", "to an end", "set"], weights=[60, 30, 3])[0]
        return "time_passes", {"how": how, "pick": self.random.randint(0, 11)}


def assert_often_enough(expected, at_least):
    rare = {name: SEEN[name] for name in expected if SEEN[name] < at_least}
    assert not rare, f"too rare to prove anything: {rare} of {SEEN.total()} steps"
