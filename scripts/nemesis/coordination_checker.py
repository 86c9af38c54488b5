"""Reads the history of semaphores, queues, elections, occurrences and several locks at once afterwards, and lists its
violations.

A claim is one acquisition. Its name is the name of its owner in the service, so that a view shows it. A lock and an
election are keys of one permit. A history is a list of events, each a JSON object with `at` (nanoseconds of the
machine's monotonic clock), `who` and `event`:

  setting     a capacity is about to be set                       key, capacity
  set         it was answered                                     key, capacity
  asked       an acquisition begins                               claim, keys, permits; occurrence; of several keys
                with semaphores among them also shares, the permits by key; first, the keys that its process has never
                asked for: such a request names no epoch, and a late copy of it may come back (docs/coordination.md)
  waiting     its process is alive, and waits                     claim
  granted     it was granted                                      claim, token
  refused     one request was refused                             claim; judges: the dead were to be judged for it
  left        it waits no longer; its ticket may be withdrawn     claim, error (the name of the client's, if it failed), detail
  believed    the holder asked its guard, which said "held"       claim; `at` is before the question
  keeping     permits are about to be given back                  claim, permits (the rest)
  releasing   a release leaves                                    claim
  released    it was answered                                     claim
  completing  a release that completes the occurrence leaves      claim
  completed   it was answered as a success                        claim
  resetting   an operator resets the occurrence                   key
  breaking    an operator's break leaves                          key
  broke       it was answered as carried out                      key, number (the token, or the number of a ticket)
  beat        a process of a job is alive                         key, token, permits
  viewed      an observer has read a key                          key, asked, capacity, available,
                holders and queue: [{id, owner, version, leaseMs, permits, number}]; the token is a holder's number

Usage: coordination_checker.py FILE…; the exit status is 1 where there are violations.
"""

import bisect
import sys
from collections import defaultdict

import checker

SECOND = 1_000_000_000
SLACK = 15 * SECOND
"""A waiter must take what is free within this time: some tries, each of which the way harms or delays by 4 s."""
LOOK = 20 * SECOND
"""A waiter looks each lease of the holders, and this often at least: so much later it may begin to count a lease, and
the permits of the dead come back (docs/coordination.md)."""
RING = 16
"""The ends that a semaphore remembers, where no request for several keys makes gaps."""
PASSED = 5 * SECOND
"""A waiter that leaves fitting permits untaken for so long is passed."""
GAP = 2 * SECOND
"""A process that gives no sign for longer was paused."""


class Claim:
    """One acquisition, and what became of it."""

    def __init__(self, event):
        self.name, self.keys, self.permits = event["claim"], event["keys"], event.get("permits", 1)
        self.shares = event.get("shares", {})
        self.asked, self.occurrence = event["at"], event.get("occurrence")
        self.first = event.get("first", [])
        self.token = self.granted = self.refused = self.left = self.releasing = self.released = self.completing = (
            self.completed
        ) = None
        self.judges, self.error, self.detail = False, None, None
        self.believed, self.alive, self.keeping = [], [event["at"]], []

    def __str__(self):
        return self.name

    def waits(self, start, end):
        """Whether it waited all this time, and its process was never paused."""
        if any(at is not None and at < end for at in (self.granted, self.refused, self.left)) or start < self.asked:
            return False
        signs = self.alive[bisect.bisect_right(self.alive, start) : bisect.bisect_left(self.alive, end)]
        return all(later - earlier < GAP for earlier, later in zip([start, *signs], [*signs, end], strict=True))

    def spans_of(self, key):
        """The times of its belief, and the permits of this key in each."""
        for start, end, permits in self.spans():
            yield start, end, self.shares.get(key, permits)

    def spans(self):
        """The times of its belief, and the permits of each."""
        start = self.believed[0]
        permits = self.permits
        for at, rest in self.keeping:
            yield start, at - 1, permits
            start, permits = at, rest
        if start <= self.believed[-1]:
            yield start, self.believed[-1], permits


class History:
    """The events by claim and by key."""

    def __init__(self, events):
        self.claims, self.views, self.beats = {}, defaultdict(list), defaultdict(list)
        self.breaks, self.resets, self.capacities = defaultdict(list), defaultdict(list), defaultdict(list)
        self._breaking = {}  # the break that each operator has under way
        self.broke = {}  # the time of each answer, by the key and the number of what was broken
        for event in events:
            self._take(event)
        for views in self.views.values():
            judge(views)
        self.by_key = defaultdict(list)
        for claim in self.claims.values():
            for key in claim.keys:
                self.by_key[key].append(claim)

    def _take(self, event):
        kind, at, key = event["event"], event["at"], event.get("key")
        # Who breaks does nothing else until the answer.
        if (under_way := self._breaking.pop(event["who"], None)) is not None:
            under_way[1] = at
        if kind == "asked":
            self.claims[event["claim"]] = Claim(event)
        elif kind == "viewed":
            self.views[key].append(event)
        elif kind == "beat":
            self.beats[key, event["token"]].append(event)
        elif kind == "breaking":
            self._breaking[event["who"]] = [at, at]
            self.breaks[key].append(self._breaking[event["who"]])
        elif kind == "broke":
            self.broke.setdefault((key, event["number"]), at)
        elif kind == "resetting":
            self.resets[key].append(at)
        elif kind == "setting":
            self.capacities[key].append([event["capacity"], at, None])
        elif kind == "set":
            next(one for one in self.capacities[key] if one[0] == event["capacity"] and one[2] is None)[2] = at
        else:
            claim = self.claims[event["claim"]]
            if kind == "believed":
                claim.believed.append(at)
            elif kind == "keeping":
                claim.keeping.append((at, event["permits"]))
            elif kind == "waiting":
                claim.alive.append(at)
            else:
                setattr(claim, kind, at)
                claim.token = event.get("token", claim.token)
                claim.error, claim.detail = event.get("error", claim.error), event.get("detail", claim.detail)
                claim.judges |= event.get("judges", False)

    def capacity(self, key, start, end):
        """The highest capacity that a key had at any time in between. A key without one is a lock."""
        return max((one[0] for one in self._capacities(key, start, end)), default=1)

    def possible_capacities(self, key, start, end):
        return {one[0] for one in self._capacities(key, start, end)}

    def _capacities(self, key, start, end):
        for one in self.capacities[key]:
            _, setting, answered = one
            # An unanswered change is over when a later one is answered: its late copy changes nothing.
            after = setting if answered is None else answered
            over = any(later[1] > after and later[2] is not None and later[2] < start for later in self.capacities[key])
            if setting <= end and not over:
                yield one

    def broken(self, key, start, end):
        """Whether a break of the key was under way between these times."""
        return any(left <= end and answered >= start for left, answered in self.breaks[key])


def judge(views):
    """Notes in each entry of the views for how long its version has been the same, beyond its lease: `dead_for`."""
    first = {}
    for view in views:
        seen = {}
        for entry in view["holders"] + view["queue"]:
            since = first.get((entry["id"], entry["version"]), view["at"])
            seen[entry["id"], entry["version"]] = since
            entry["dead_for"] = view["asked"] - since - entry["leaseMs"] * 1_001_000
        first = seen


def free(view, is_back):
    """The permits that are available, or have come back from the dead."""
    return view["available"] + sum(entry["permits"] for entry in view["holders"] if is_back(entry))


def dead_longer_than(time):
    """Tells entries whose lease ended so long ago."""
    return lambda entry: entry["dead_for"] > time


def over_full(key, history, spans):
    """Finds the moments at which more permits are out than there are.

    A span is (start, end, permits, asked, granted, name).
    """
    spans = sorted(spans)
    for start, *_ in spans:
        out = [span for span in spans if span[0] <= start <= span[1]]
        asked, granted = min(span[3] for span in out), max(span[4] for span in out)
        capacity = max(history.capacity(key, span[3], span[4]) for span in out)
        permits = sum(span[2] for span in out)
        if permits > capacity and not history.broken(key, asked, granted):
            yield f"{permits} permits of {key} were out, and there are {capacity}: {', '.join(span[5] for span in out)}"


def too_many_believe(history):
    """Holders together believe in more permits than there are: two holders of a lock, or two leaders, at once."""
    for key, claims in history.by_key.items():
        spans = [
            (start, end, permits, claim.asked, claim.granted, claim.name)
            for claim in claims
            if claim.believed and claim.granted is not None
            for start, end, permits in claim.spans_of(key)
        ]
        yield from over_full(key, history, spans)


def too_many_work(history):
    """Processes of jobs work under more permits than there are: the children of two runs of a lock at once."""
    by_key = defaultdict(list)
    for (key, token), beats in history.beats.items():
        start, end = beats[0]["at"], beats[-1]["at"] - 1
        by_key[key].append((start, end, beats[0]["permits"], start, start, f"the job with the token {token}"))
    for key, spans in by_key.items():
        yield from over_full(key, history, spans)


def unknown_belief(history):
    """A claim is believed in without a grant."""
    for claim in history.claims.values():
        if claim.believed and (claim.granted is None or claim.believed[0] < claim.granted):
            yield f"{claim} believed before it was granted"


def token_twice(history):
    """Two claims of a key have the same token."""
    for key, claims in history.by_key.items():
        owner = {}
        for claim in claims:
            if claim.token is not None and (other := owner.setdefault(claim.token, claim)) is not claim:
                yield f"{other} and {claim} have the token {claim.token} of {key}"


def token_falls(history):
    """A grant that was asked for after another one has a lower token."""
    for key, claims in history.by_key.items():
        granted = [claim for claim in claims if claim.granted is not None]
        earliest = None
        for claim in sorted(granted, key=lambda claim: claim.token, reverse=True):
            if earliest is not None and earliest.granted < claim.asked and claim.token < earliest.token:
                yield f"{claim} has the token {claim.token} of {key}, after {earliest} with {earliest.token}"
            if earliest is None or claim.granted < earliest.granted:
                earliest = claim


def count(history):
    """The permits of a view do not add up."""
    for key, views in history.views.items():
        for view in views:
            taken = sum(entry["permits"] for entry in view["holders"])
            if view["available"] != max(0, view["capacity"] - taken):
                yield f"{key} has {view['capacity']} permits, {view['available']} available, and {taken} taken"


def capacity_undone(history):
    """A view shows a capacity that a later one had replaced."""
    for key, views in history.views.items():
        for view in views:
            possible = history.possible_capacities(key, view["asked"], view["at"])
            if possible and view["capacity"] not in possible:
                yield f"{key} has {view['capacity']} permits, and should have {sorted(possible)}"


def ghosts(history):
    """A view shows a holder or a ticket of a claim that had ended before."""
    known = set()
    for key, views in history.views.items():
        for view in views:
            for what, entries in (("holder", view["holders"]), ("ticket", view["queue"])):
                for entry in entries:
                    claim = history.claims.get(entry["owner"])
                    if claim is None or (what, entry["id"], entry["version"]) in known:
                        continue
                    ends = [claim.released] + ([claim.granted] if what == "ticket" else [])
                    if any(end is not None and end < view["asked"] for end in ends) and remembers(
                        history, key, claim, view
                    ):
                        known.add((what, entry["id"], entry["version"]))
                        yield f"{key} has a {what} of {claim}, which had ended"


def remembers(history, key, claim, view):
    """Whether a row must remember a claim that ended. A lock remembers its last one and the one before. A semaphore
    remembers its last ends, 16 of them where nobody asks for several keys, and refuses an old epoch."""
    if history.capacities[key]:
        later = sum(claim.asked < one.asked < view["at"] for one in history.by_key[key])
        is_gapped = any(len(one.keys) > 1 for one in history.by_key[key])
        return key not in claim.first or later < (1 if is_gapped else RING)
    later = [one for one in history.by_key[key] if one.token is not None and one.token > claim.token]
    return sum(one.granted < view["asked"] for one in later) < 2


def outlives_its_break(history):
    """A view shows what an operator had broken, or a holder completes an occurrence after its break."""
    for (key, number), broke in history.broke.items():
        for view in history.views[key]:
            if view["asked"] > broke and any(entry["number"] == number for entry in view["holders"] + view["queue"]):
                yield f"{key} has the entry {number}, which an operator had broken"
                break
        for claim in history.by_key[key]:
            if claim.token == number and claim.completed is not None and claim.completing > broke:
                yield f"{claim} completed {claim.occurrence} of {key}, which an operator had broken"


def halves(history):
    """A claim of several keys holds some of them, and not the others, or other permits than it asked for, or not under
    its one token. (A refused one that holds some is a ghost.)"""
    for claim in history.claims.values():
        for key in claim.keys if len(claim.keys) > 1 else []:
            share = claim.shares.get(key, 1)
            for view in history.views[key]:
                shown = any(
                    (entry["owner"], entry["permits"], entry["number"]) == (claim.name, share, claim.token)
                    for entry in view["holders"]
                )
                believes = claim.granted is not None and claim.believed and claim.granted < view["asked"]
                if (
                    not shown
                    and believes
                    and view["at"] < claim.believed[-1]
                    and not history.broken(key, claim.asked, view["at"])
                ):
                    yield f"{claim} was granted {', '.join(claim.keys)}, and does not hold {key}"


def passed(history):
    """A younger waiter took the permits that an older one waited for.

    Views before and after the grant show so beyond doubt: the younger one's ticket, then its permits, and each time
    the older one's ticket.
    """
    for key, views in history.views.items():
        for younger in history.by_key[key]:
            if younger.granted is None:
                continue
            before = [view for view in views if owned(view["queue"], younger)]
            after = [view for view in views if owned(view["holders"], younger)]
            if not before or not after or before[-1]["asked"] > after[0]["at"]:
                continue
            before, after = before[-1], after[0]
            latest = min(younger.granted, after["at"])
            mine = owned(before["queue"], younger)
            # Who had permits at the grant and gave them back before the view is missing.
            taken = sum(entry["permits"] for entry in after["holders"] if entry["number"] <= younger.token)
            left = history.capacity(key, before["asked"], latest) - taken
            smallest = min(history.possible_capacities(key, before["asked"], latest), default=1)
            for entry in before["queue"]:
                older = history.claims.get(entry["owner"])
                if older is None or entry["number"] >= mine["number"] or entry["permits"] > smallest:
                    continue
                seen = [view for view in views if any(one["number"] == entry["number"] for one in view["queue"])]
                fits = left >= entry["permits"]
                if fits or seen[-1]["asked"] < latest or history.broken(key, older.asked, latest):
                    continue
                if may_be_dead(seen, entry["number"], latest) or may_have_left(views, before, latest, entry["permits"]):
                    continue
                if older.waits(seen[0]["at"], latest):
                    yield f"{younger} took {key} before {older}, which came first and waited"


def owned(entries, claim):
    """The entry of this claim."""
    return next((entry for entry in entries if entry["owner"] == claim.name), None)


def may_be_dead(views, number, latest):
    """Whether a ticket could be taken for dead. Others may have seen its version a moment before the observer."""
    entries = [one for view in views if view["asked"] < latest for one in view["queue"] if one["number"] == number]
    return any(entry["dead_for"] > -GAP for entry in entries)


def may_have_left(views, before, latest, permits):
    """Whether so many permits could have been free for five seconds, until the younger one took them."""
    recent = [view for view in views if latest - PASSED < view["asked"] and view["at"] <= before["at"]]
    return all(free(view, dead_longer_than(-GAP)) >= permits for view in recent)


def pushed_in(history):
    """A claim of several keys was granted permits, while a ticket waited all the time from its first request on."""
    for key, views in history.views.items():
        places = {}  # the times of the first and the last view of each ticket
        for view in views:
            for entry in view["queue"]:
                first, _, permits = places.get(entry["number"], (view["at"], None, entry["permits"]))
                places[entry["number"]] = (first, view["asked"], permits)
        for claim in history.by_key[key]:
            if len(claim.keys) < 2 or claim.granted is None:
                continue
            for number, (first, last, permits) in places.items():
                # A ticket that wants more than there is stands before nobody.
                fits = permits <= min(history.possible_capacities(key, claim.asked, claim.granted), default=1)
                if first < claim.asked and last > claim.granted and fits:
                    yield f"{claim} was granted {key} with others, while the ticket {number} waited"
                    break


def stuck(history):
    """The first waiter who is alive does not get what is free, or what the dead hold."""
    for key, views in history.views.items():
        waiter = since = None
        for view in views:
            first = first_waiter(history, view)
            if first is None or first is not waiter:
                waiter, since = first, view["at"]
            elif view["asked"] - since > SLACK and waiter.waits(since, view["asked"]):
                seconds = (view["asked"] - since) / SECOND
                waits = f"{waiter} waits for {waiter.permits} permits of {key} for {seconds:.0f} s"
                yield f"{waits}, while {free_to(waiter, view)} are free"
                waiter = None


def first_waiter(history, view):
    """The claim that is next by its ticket, where enough is free, and no ticket ahead could be alive."""
    ahead = []
    for entry in sorted(view["queue"], key=lambda entry: entry["number"]):
        claim = history.claims.get(entry["owner"])
        if entry["permits"] > view["capacity"]:
            continue
        if claim and claim.waits(max(claim.asked, view["asked"] - GAP), view["asked"]):
            is_next = all(is_dead_to(claim, view, other) for other in ahead)
            return claim if is_next and free_to(claim, view) >= entry["permits"] else None
        ended = claim and any(
            end is not None and end < view["asked"] for end in (claim.granted, claim.refused, claim.released)
        )
        if not ended:
            ahead.append(entry)
    return None


def is_dead_to(claim, view, entry, after=0):
    """Whether the claim, which judges by its own looks alone, has seen the entry for longer than its lease."""
    seen_for = view["asked"] - claim.asked - entry["leaseMs"] * 1_001_000
    return min(entry["dead_for"], seen_for) > after


def free_to(claim, view):
    """The permits that are available, or have come back from the dead to this waiter."""
    return free(view, lambda entry: is_dead_to(claim, view, entry, min(entry["leaseMs"] * 1_000_000, LOOK)))


def kept_from(history):
    """A caller who never waits is refused, although all that stands before it was dead for long."""
    for key, claims in history.by_key.items():
        for claim in claims:
            if not claim.judges or claim.refused is None:
                continue
            views = [
                view for view in history.views[key] if claim.asked <= view["asked"] and view["at"] <= claim.refused
            ]
            if views and all(
                free(view, dead_longer_than(SLACK)) >= claim.permits
                and all(entry["dead_for"] > SLACK for entry in view["queue"])
                for view in views
            ):
                yield f"{claim} was refused, while {free(views[0], dead_longer_than(SLACK))} permits of {key} were free or of the dead"


def done_twice(history):
    """An occurrence, or one after it, was completed twice, or begun again after its end."""
    for key, claims in history.by_key.items():
        done = [claim for claim in claims if claim.completed is not None]
        for first in done:
            for claim in claims:
                # Occurrences are compared byte for byte.
                covered = claim.occurrence is not None and claim.occurrence.encode() <= first.occurrence.encode()
                again = claim.granted is not None and claim.asked > first.completed
                twice = (
                    claim.completed is not None
                    and claim.occurrence == first.occurrence
                    and claim.completed >= first.completed
                )
                reset = any(first.completing <= at <= (claim.granted or claim.asked) for at in history.resets[key])
                if claim is not first and covered and (again or twice) and not reset:
                    did = f"{claim} {'ran' if again else 'completed'} {claim.occurrence} of {key}"
                    yield f"{did}, after {first} completed {first.occurrence}"


UNCALLED_FOR = {"WrongKind", "PermitsMismatch", "InvalidRequest", "Forbidden", "CorruptRecord", "NotFound"}
"""Errors that no fault explains: an agent that follows its orders is never told so, by any client."""


def refused_wrongly(history):
    """An acquisition fails with an error that no fault explains."""
    for claim in history.claims.values():
        if claim.error in UNCALLED_FOR:
            yield f"{claim} asked for {', '.join(claim.keys)}, and failed with {claim.error}: {claim.detail}"


RULES = {
    "too many believe": too_many_believe,
    "too many work": too_many_work,
    "unknown belief": unknown_belief,
    "token twice": token_twice,
    "token falls": token_falls,
    "count": count,
    "capacity undone": capacity_undone,
    "ghost": ghosts,
    "outlives its break": outlives_its_break,
    "half": halves,
    "passed": passed,
    "pushed in": pushed_in,
    "stuck": stuck,
    "kept from": kept_from,
    "done twice": done_twice,
    "refused wrongly": refused_wrongly,
}


def violations(events, rules=RULES):
    """Returns all violations, as `checker.judged` does."""
    return checker.judged(History(events), rules)


if __name__ == "__main__":
    sys.exit(checker.main(sys.argv[1:], violations))
