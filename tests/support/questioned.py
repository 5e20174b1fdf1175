"""A store that keeps its records in memory and gives the rules access only by questions and changes.

It shows that the interface for server stores is sufficient: the executor on this source must equal the memory store.
"""

# ruff: noqa: C901, PLR0911, PLR0912  (one case per question, one loop per kind of change)

from __future__ import annotations

from bisect import bisect_right

from holdfast.rules.runs.limits import group_of
from holdfast.rules.runs.record import worker_key
from holdfast.rules.slot import EXECUTION
from holdfast.stores import questions as q
from holdfast.stores.common import woken_by_channel
from holdfast.stores.executor import execute
from holdfast.stores.index_moves import members as members_of
from holdfast.stores.index_moves import places_of
from holdfast.stores.memory import store as memory


class MemorySource:
    """Answers questions from the records of a memory store, and counts reads and writes."""

    guesses = None

    def __init__(self, space, now):
        self.space, self.now = space, now
        self.reads = self.writes = 0
        self.asked: list[set[q.Question]] = []

    def read(self, questions, *, changing):
        self.reads += 1
        self.asked.append(set(questions))
        snapshot = q.Snapshot(self.now)
        for question in questions:
            snapshot.put(question, self._answer(question))
            if isinstance(question, q.RegisteredWorkers):
                for worker in self.space.runs.workers():
                    lease = q.LockByKey(worker_key(worker.id))
                    snapshot.put(lease, self._answer(lease))
        return snapshot

    def _answer(self, question):
        repo = self.space.runs
        match question:
            case q.RunById():
                return repo.run(question.id)
            case q.RunByKey():
                return repo.run_with_key(question.workflow, question.key)
            case q.Entries():
                return repo.entries(question.run, None if question.whole else 1)
            case q.RunEvents():
                return repo.events(question.run, question.after)
            case q.EventByKey():
                return repo.event_with_key(question.run, question.key)
            case q.RegisteredWorkers():
                return repo.workers()
            case q.Claimable():
                return None
            case q.LockByKey():
                return self.space.records.get(question.key)
            case q.LimitsOf():
                return repo.terms(question.workflow)
            case q.SlotAt():
                return self.space.slots.get(question.address)
            case q.SlotsOf():
                return tuple(
                    key for scope, owner, key in self.space.slots if (scope, owner) == (EXECUTION, question.owner)
                )
            case q.RecordAt():
                stored = self.space.typed.get(question.kind, question.key)
                return None if stored is None else stored.text
            case q.GroupSize():
                return repo.queued(question.group) if question.queued else repo.admitted(question.group)
            case q.QueuedLimitKeys():
                return [
                    (place, repo.queued(group_of(question.workflow, place)))
                    for place in repo.queued_limit_keys(question.workflow)
                ]
            case q.StartsToCome():
                return repo.starts_after(question.group, self.now)
            case _:
                return self._list(question)[: question.limit]

    def _list(self, question):
        repo = self.space.runs
        match question:
            case q.RunsAtOnce():
                return [item for item in repo._due.get(question.type, ()) if item[0] < 0]
            case q.RunsByTime():
                return [item for item in repo._due.get(question.type, ()) if item[0] >= 0]
            case q.RunsOf():
                return [run.id for run in repo.owned(question.worker, None)]
            case q.Members() | q.LatestArrivals():
                names = repo.members(question.group, queued=question.queued, limit=None)
                key = members_of(question.group, queued=question.queued)
                members = sorted({item for name in names for place, item in places_of(repo.run(name)) if place == key})
                if isinstance(question, q.Members):
                    return members
                return sorted((member[1:] for member in members if member[0] == question.rank), reverse=True)
            case q.LatestStarts():
                return repo._starts.get(question.group, [])[::-1]
            case q.DueLocks():
                due = ((record.due_at, key) for key, record in self.space.records.items())
                return sorted(item for item in due if item[0] is not None and item[0] <= self.now)
            case q.LocksAfter():
                keys = sorted(self.space.records)
                return keys[bisect_right(keys, question.after) :]
            case q.RecordsAfter():
                return self.space.typed.keys_after(question.kind, question.prefix, question.after, None)
            case q.DueRecords():
                return self.space.typed.due(question.kind, self.now)
        raise NotImplementedError(question)

    def write(self, repository, hints, woken):
        self.writes += 1
        changes, repo = repository.changes, self.space.runs
        for cleared in changes.cleared.values():
            repo.clear_run(cleared.stored, cleared.left)
        for run in changes.runs.values():
            repo.save(run)
        for run, steps in changes.journals.items():
            for step in steps:
                if isinstance(step, q.TruncateJournal):
                    repo.cut(run, step.keep)
                else:
                    repo.append(run, step.at, step.entries)
        for run, posts in changes.inboxes.items():
            for post in posts:
                if isinstance(post, q.ClearInbox):
                    repo.clear_inbox(run)
                elif isinstance(post, q.RemoveEvents):
                    repo.unpost(run, post.numbers)
                else:
                    repo.post(run, post.event)
        for key, record in changes.locks.items():
            if record is None:
                self.space.remove(key)
            else:
                self.space.put(key, record)
        self.space.slots.update(changes.slots)
        for (kind, key), change in changes.records.items():
            self.space.typed.put(kind, key, change.stored)
        for workflow, terms in changes.terms.items():
            repo.put_terms(workflow, terms)
        for name, worker in changes.workers.items():
            if worker is None:
                repo.unregister_worker(name)
            else:
                repo.register_worker(worker)
        for start in changes.starts:
            repo.note_start(start.group, start.at, start.run, start.limit, start.now)
        return True

    def check(self, changes):
        pass

    def undo(self):
        pass

    def scan(self, command):
        return memory._answer(self.space, command, self.now)


class QuestionedConnection(memory.MemoryConnection):
    """A connection that executes batches by questions."""

    def execute(self, commands):
        space = self._space
        if space is None:
            return super().execute(commands)
        with space.mutex:
            outcomes, hints, _ = execute(MemorySource(space, self._clock()), commands)
            woken = woken_by_channel(outcomes, hints)
            hinted = [(watch, ids) for channel, ids in woken.items() for watch in space.watches.get(channel, ())]
        for watch, ids in hinted:
            watch.on_hint(ids)
        return outcomes


class QuestionedStore(memory.MemoryStore):
    """The memory store, accessed by questions."""

    def connect(self, role):
        return QuestionedConnection(self._open_space(), self._clock)


def open_questioned(url, *, namespace, clock):
    store = memory.open_memory(url, namespace=namespace, clock=clock)
    return QuestionedStore(url=store.url, identity=store.identity, space=store._open_space(), clock=clock)
