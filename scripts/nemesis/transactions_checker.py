"""Reads the history of transactions afterwards, and lists its anomalies. Cycles have the names of Adya, as in Elle.

The items are lists, to which transactions append values that are unique in the history, and counters, to which they
add. A history is a list of events, each a JSON object with `at` (nanoseconds of the machine's monotonic clock), `who`
and `event`:

  begin       a transaction begins                                  tx; private: nobody else wants its items
  append      an append is about to be sent                         tx, key, value
  add         an addition to a counter is about to be sent          tx, key, amount (above 0)
  delete      a delete is about to be sent                          tx, key; the transaction has read the item before
  refused     the last change of the item was certainly not made    tx, key
  read        the item as the transaction sees it                   tx, key, value (a list, or null without an item)
  alive       any other answer                                      tx
  committing  the commit is about to be sent                        tx
  committed   it was answered                                       tx
  rolling     the rollback is about to be sent                      tx
  aborted     an answer said that the transaction is rolled back    tx
  seen        a reader outside has seen an item                     key, value (a list, a number, null), level, asked
                (when it began), final: nothing is under way any more

A transaction without `committed` and `aborted` has an unknown outcome, if its commit was sent. Values of it that
others see tell that it committed.

Usage: transactions_checker.py FILE…; the exit status is 1 where there are violations.
"""

import functools
import itertools
import sys
from collections import defaultdict, deque
from typing import Any

import checker

SECOND = 1_000_000_000
IDLE = 30 * SECOND
"""A transaction without a sign of life for a minute may be rolled back by a sweeper. Half of it allows for pauses."""
LATE = 15 * SECOND
"""Longer than all delays on the way together. Others see a commit; its caller must be told within this time."""


class Transaction:
    """What one transaction did, and what it was told."""

    def __init__(self, name):
        self.name = name
        self.appends = defaultdict(list)  # key: values in order
        self.adds = defaultdict(list)
        self.deletes = set()
        self.steps = []  # ("append" | "delete" | "read", key, value), in order
        self.first_reads = {}  # key: (at, the value before the first change of its own)
        self.times = []
        self.caller = self.told_at = None  # who began it, and the last that it was told or sent
        self.private = False
        self.committing = self.committed = self.rolling = self.aborted = None
        self.seen_at = None

    def __str__(self):
        return self.name

    @property
    def may_be_committed(self):
        return self.committing is not None and self.aborted is None

    def lives_ended(self):
        """The lives of items that it deleted, by key and first value."""
        for key in self.deletes:
            _, values = self.first_reads.get(key, (None, None))
            if values:
                yield key, values[0]

    def lists_read(self):
        """The lists of other transactions that this one has read: (key, at, list), None without an item."""
        for key, (at, value) in self.first_reads.items():
            if value is None or isinstance(value, list):
                yield key, at, value


class History:
    """The events by transaction, by item, and the order of each item's versions."""

    def __init__(self, events):
        self.transactions, self.views = {}, []
        for event in events:
            if event["event"] == "seen":
                if event["level"] == "committed":
                    self.views.append(event)
            else:
                self._take(event)
        self.all = list(self.transactions.values())
        self.writer = {value: one for one in self.all for values in one.appends.values() for value in values}
        self.writers = defaultdict(list)  # key: the transactions that change it
        for one in self.all:
            for key in {*one.appends, *one.adds}:
                self.writers[key].append(one)
        self.deletable = {key for one in self.all if one.may_be_committed for key in one.deletes}
        self._infer()
        self.committed = [
            one for one in self.all if one.committed is not None or (one.seen_at is not None and one.aborted is None)
        ]
        # The versions of each life of an item: a life ends by a delete, and its first value is its name.
        self.lives = {}
        for key, values, _ in self.lists():
            if values and len(values) > len(self.life(key, values)):
                self.lives[key, values[0]] = values

    def life(self, key, values):
        return self.lives.get((key, values[0]), [])

    def _take(self, event):
        kind, key = event["event"], event.get("key")
        one = self.transactions.setdefault(event["tx"], Transaction(event["tx"]))
        one.times.append(event["at"])
        one.caller = one.caller or event["who"]
        if event["who"] == one.caller:
            one.told_at = event["at"]
        if kind == "begin":
            one.private = event.get("private", False)
        elif kind == "append":
            one.appends[key].append(event["value"])
            one.steps.append((kind, key, event["value"]))
        elif kind == "add":
            one.adds[key].append(event["amount"])
            one.steps.append((kind, key, event["amount"]))
        elif kind == "delete":
            one.deletes.add(key)
            one.steps.append((kind, key, None))
        elif kind == "refused":
            self._forget(one, key)
        elif kind == "read":
            if not any(step[1] == key and step[0] != "read" for step in one.steps):
                one.first_reads.setdefault(key, (event["at"], event["value"]))
            one.steps.append((kind, key, event["value"]))
        elif kind in ("committing", "committed", "rolling", "aborted") and getattr(one, kind) is None:
            setattr(one, kind, event["at"])

    @staticmethod
    def _forget(one, key):
        index = max(index for index, step in enumerate(one.steps) if step[1] == key and step[0] != "read")
        kind, _, _ = one.steps.pop(index)
        if kind == "delete":
            one.deletes.discard(key)
        else:
            changes = one.appends if kind == "append" else one.adds
            changes[key].pop()
            if not changes[key]:
                del changes[key]

    def _infer(self):
        """An unknown transaction, a value of which others saw as committed, is committed."""
        found = deque((view["at"], view["value"]) for view in self.views if isinstance(view["value"], list))
        for one in self.all:
            if one.committed is not None:
                found.extend((one.committed, values) for _, _, values in one.lists_read() if values)
        while found:
            at, values = found.popleft()
            for writer in filter(None, map(self.writer.get, values)):
                if writer.seen_at is None and writer.committed is None:
                    found.extend((at, read) for _, _, read in writer.lists_read() if read)
                writer.seen_at = min(at, writer.seen_at or at)

    def lists(self):
        """All lists that committed reads and committed transactions saw, with a name for each."""
        for view in self.views:
            if isinstance(view["value"], list):
                yield view["key"], view["value"], f"a committed read by {view['who']}"
        for one in self.committed:
            for kind, key, value in one.steps:
                if kind == "read" and isinstance(value, list):
                    yield key, value, f"a read by {one}"

    def looks(self):
        """All looks at lists of others: (key, list, when it began, when it ended, by whom)."""
        for view in self.views:
            if view["value"] is None or isinstance(view["value"], list):
                yield view["key"], view["value"], view["asked"], view["at"], f"a committed read by {view['who']}"
        for one in self.all:
            for key, at, values in one.lists_read():
                yield key, values, one.times[0], at, f"a read by {one}"

    @functools.cached_property
    def graph(self):
        return Graph(self)


def aborted_read(history):
    """G1a: a committed read, or a committed transaction, saw a value of a transaction that was rolled back."""
    for key, values, by in history.lists():
        for value in values:
            writer = history.writer.get(value)
            if writer is None:
                yield f"{by} of {key} saw {value!r}, which nobody wrote"
            elif writer.aborted is not None and writer.committed is None:
                yield f"{by} of {key} saw {value!r} of {writer}, which was rolled back"


def dirty_read(history):
    """G1a, too: somebody saw a value before the commit of its transaction was asked for."""
    for key, values, _, at, by in history.looks():
        for value in values or []:
            writer = history.writer.get(value)
            if writer and writer.aborted is None and (writer.committing is None or at < writer.committing):
                yield f"{by} of {key} saw {value!r} before {writer} was to commit"


def intermediate_read(history):
    """G1b: somebody else saw an item as it was between two changes of one transaction."""
    for key, values, _, _, by in history.looks():
        if values and (writer := history.writer.get(values[-1])):
            written = writer.appends.get(key, [])
            if writer.aborted is None and written and values[-1] != written[-1]:
                yield f"{by} of {key} saw {values[-1]!r} of {writer}, which then wrote {written[-1]!r}"


def internal(history):
    """A transaction reads what it wrote itself, and what it read before, until its end."""
    for one in history.all:
        read: dict[str, Any] = {}
        own = defaultdict(list)  # what it read last of a key, and its changes since
        for kind, key, value in one.steps:
            if kind == "delete":
                read[key], own[key] = None, []
            elif kind != "read":
                own[key].append(value)
            elif isinstance(value, int):
                sum_of_own = sum(own[key])
                if value < sum_of_own or (key in read and value != (read[key] or 0) + sum_of_own):
                    yield f"{one} read {value} of {key}, after {read.get(key)} and {own[key]} of its own"
                read[key], own[key] = value, []
            else:
                values, changes = value or [], own[key]
                as_expected = (
                    values == (read[key] or []) + changes
                    if key in read
                    else values[len(values) - len(changes) :] == changes
                )
                if not as_expected:
                    yield f"{one} read {value} of {key}, after {read.get(key)} and {changes} of its own"
                read[key], own[key] = value, []


def duplicate(history):
    """A value was appended twice."""
    for key, values, by in history.lists():
        if len(set(values)) < len(values):
            yield f"{by} of {key} saw a value twice: {values}"


def incompatible_order(history):
    """Two reads of one life of an item disagree about its past."""
    for key, values, by in history.lists():
        if values and values != history.life(key, values)[: len(values)]:
            yield f"{by} of {key} saw {values}, and another one {history.life(key, values)}"


def lost(history):
    """Somebody misses a change whose commit was answered before."""
    for key, values, asked, _, by in history.looks():
        if key not in history.deletable:
            for one in history.writers[key]:
                missing = [value for value in one.appends[key] if value not in (values or [])]
                if missing and one.committed is not None and one.committed < asked:
                    yield f"{by} of {key} misses {missing} of {one}, which was committed"


def torn(history):
    """A transaction whose commit was not answered took place in part."""
    finals = {view["key"]: view["value"] or [] for view in history.views if view.get("final")}
    for one in history.committed:
        if one.committed is None:
            for key, values in one.appends.items():
                missing = [value for value in values if key in finals and value not in finals[key]]
                if missing and key not in history.deletable:
                    yield f"{one} took place in part: {missing} of {key} is missing"


def undead(history):
    """Somebody saw a life of an item after the answer of the commit that deleted it."""
    ends = {
        (key, life): one for one in history.committed if one.committed is not None for key, life in one.lives_ended()
    }
    for key, values, asked, _, by in history.looks():
        one = ends.get((key, values[0])) if values else None
        if one and one.committed < asked:
            yield f"{by} of {key} saw {values}, which {one} deleted"


def deleted_twice(history):
    """Two transactions deleted the same life of an item."""
    enders = {}
    for one in history.committed:
        for key, first in one.lives_ended():
            other = enders.setdefault((key, first), one)
            if other is not one:
                yield f"{other} and {one} deleted the same {key}, which began with {first!r}"


def two_outcomes(history):
    """An outcome that was told changed."""
    for one in history.all:
        if one.committed is not None and one.aborted is not None:
            yield f"{one} was told to be committed, and to be rolled back"


def exactly_once(history):
    """A counter is the sum of the committed additions, each of them once."""
    for view in history.views:
        key, value = view["key"], view["value"] or 0
        adding = [one for one in history.writers[key] if one.adds[key]]
        if not adding:
            continue
        least = sum(sum(one.adds[key]) for one in adding if one.committed is not None and one.committed < view["asked"])
        most = sum(sum(one.adds[key]) for one in adding if one.may_be_committed and one.committing < view["at"])
        if not least <= value <= most:
            yield f"a committed read by {view['who']} of the counter {key} saw {value}, and not {least} to {most}"


def evicted(history):
    """A transaction was rolled back, although nobody asked for it or wanted its items, and it was at work."""
    for one in history.all:
        if one.private and one.aborted is not None and one.rolling is None:
            times = sorted(at for at in one.times if at <= one.aborted)
            silence = max((later - earlier for earlier, later in itertools.pairwise(times)), default=0)
            if silence < IDLE:
                yield f"{one} was rolled back after {silence / SECOND:.1f} s without a sign of life"


def late_answer(history):
    """Others saw a commit long before its caller was told, or was told that the outcome is unknown.

    A killed caller is told nothing, and what others ask about its transaction later is no answer to it.
    """
    for one in history.all:
        if one.seen_at is not None:
            late = (one.committed or one.told_at) - one.seen_at
            if late > LATE:
                yield f"the commit of {one} was answered {late / SECOND:.1f} s after others saw it"


class Graph:
    """Transactions, and why one must come before another: ww, wr or rw, of an item."""

    def __init__(self, history):
        self.edges = defaultdict(dict)  # from: {(to, kind): key}
        for (key, _), values in history.lives.items():
            writers = [history.writer.get(value) for value in values]
            for earlier, later in itertools.pairwise(writers):
                self._add(earlier, later, "ww", key)
        first_of = defaultdict(list)
        for key, first in history.lives:
            first_of[key].append(history.writer.get(first))
        enders = {life: one for one in history.committed for life in one.lives_ended()}
        for one in history.committed:
            for key, _, values in one.lists_read():
                if not values:
                    # A missing item of a key that somebody deletes may be of any time between two lives.
                    if key not in history.deletable:
                        for first in first_of[key]:
                            self._add(one, first, "rw", key)
                    continue
                life = history.life(key, values)
                self._add(history.writer.get(values[-1]), one, "wr", key)
                if len(life) > len(values):
                    self._add(one, history.writer.get(life[len(values)]), "rw", key)
                else:
                    self._add(one, enders.get((key, values[0])), "rw", key)
        for (key, first), one in enders.items():
            self._add(history.writer.get(history.lives.get((key, first), [first])[-1]), one, "ww", key)

    def _add(self, one, other, kind, key):
        if one is not None and other is not None and one is not other:
            self.edges[one].setdefault((other, kind), key)

    def _next(self, one, kinds):
        return [(other, kind, key) for (other, kind), key in self.edges.get(one, {}).items() if kind in kinds]

    def _components(self, kinds):
        """The strongly connected component of each transaction, as a number: Tarjan's algorithm, without recursion."""
        index, low, component, stack = {}, {}, {}, []
        for root in list(self.edges):
            work = [] if root in index else [(root, None)]
            while work:
                one, rest = work.pop()
                if rest is None:
                    index[one] = low[one] = len(index)
                    stack.append(one)
                    rest = iter(self._next(one, kinds))
                for other, _, _ in rest:
                    if other not in index:
                        work += [(one, rest), (other, None)]
                        break
                    if other not in component:
                        low[one] = min(low[one], low[other])
                else:
                    if low[one] == index[one]:
                        while True:
                            member = stack.pop()
                            component[member] = index[one]
                            if member is one:
                                break
                    if work:
                        parent = work[-1][0]
                        low[parent] = min(low[parent], low[one])
        return component

    def _path(self, start, end, kinds):
        """The shortest path over edges of these kinds, as a list of (from, kind, key)."""
        before: dict[Any, Any] = {start: None}
        queue = deque([start])
        while queue:
            one = queue.popleft()
            if one is end:
                steps = []
                while before[one] is not None:
                    steps.insert(0, before[one])
                    one = before[one][0]
                return steps
            for other, kind, key in self._next(one, kinds):
                if other not in before:
                    before[other] = (one, kind, key)
                    queue.append(other)
        return None

    def cycles(self, closing, kinds, needs=None):
        """Cycles that an edge of the kind `closing` closes over edges of `kinds`, one of which is of the kind `needs`.
        Each set of members comes once."""
        component, known = self._components({closing, *kinds}), set()
        for one in list(self.edges):
            for other, kind, key in self._next(one, {closing}):
                if component[one] != component[other]:
                    continue
                back = self._path(other, one, kinds)
                if back is None or (needs and all(step[1] != needs for step in back)):
                    continue
                steps = [(one, kind, key), *back]
                members = frozenset(step[0] for step in steps)
                if members not in known:
                    known.add(members)
                    yield " ".join(f"{member} -{kind} {key}->" for member, kind, key in steps) + f" {one}"


def write_cycle(history):
    """G0: the writes of transactions are mixed."""
    yield from history.graph.cycles("ww", {"ww"})


def circular_flow(history):
    """G1c: transactions read each other's writes."""
    yield from history.graph.cycles("wr", {"ww", "wr"})


def single_anti_dependency(history):
    """G-single: one read of a cycle missed a write, as in a lost update or a skewed read."""
    yield from history.graph.cycles("rw", {"ww", "wr"})


def anti_dependency_cycle(history):
    """G2: several reads of a cycle missed a write, as in write skew."""
    yield from history.graph.cycles("rw", {"ww", "wr", "rw"}, needs="rw")


RULES = {
    "G0": write_cycle,
    "G1a": aborted_read,
    "G1a, dirty": dirty_read,
    "G1b": intermediate_read,
    "G1c": circular_flow,
    "G-single": single_anti_dependency,
    "G2": anti_dependency_cycle,
    "internal": internal,
    "duplicate": duplicate,
    "incompatible order": incompatible_order,
    "lost": lost,
    "torn": torn,
    "undead": undead,
    "deleted twice": deleted_twice,
    "two outcomes": two_outcomes,
    "exactly once": exactly_once,
    "evicted": evicted,
    "late answer": late_answer,
}


def violations(events, rules=RULES):
    """Returns all violations, as `checker.judged` does."""
    return checker.judged(History(events), rules)


if __name__ == "__main__":
    sys.exit(checker.main(sys.argv[1:], violations))
