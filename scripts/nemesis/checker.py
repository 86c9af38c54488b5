"""Reads the history of contenders afterwards, and lists its violations.

A history is a list of events, each a JSON object with `at` (nanoseconds of the machine's monotonic clock), `who` and
`event`:

  asked      an acquisition begins                          key
  granted    it was granted                                 key, token, asked (when it began), data
  believed   the holder asked its guard, which said "held"  key, token; `at` is before the question
  sending    a heartbeat with a payload leaves              key, token, data
  acked      it was answered                                key, token, data
  releasing  a release leaves                               key, token, delete
  breaking   an operator's break leaves                     key
  wrote      a fenced store accepted a write                key, token, writer; in the order of the writes

Usage: checker.py FILE…; the exit status is 1 where there are violations.
"""

import json
import pathlib
import sys
from collections import defaultdict


class Acquisition:
    """One grant, and its holder's actions."""

    def __init__(self, event):
        self.key, self.token, self.who = event["key"], event["token"], event["who"]
        self.asked, self.granted, self.found = event["asked"], event["at"], event.get("data")
        self.first_believed = self.last_believed = None
        self.sent, self.acked = [], []
        self.deletes = False

    def __str__(self):
        return f"{self.who} with the token {self.token} of {self.key}"


def violations(events):
    """Returns all violations, a sentence each."""
    found = []
    acquisitions, breaks, writes = {}, defaultdict(list), []
    for event in events:
        kind, key = event["event"], event.get("key")
        if kind == "granted":
            if (key, event["token"]) in acquisitions:
                found.append(f"granted twice: the token {event['token']} of {key}, last to {event['who']}")
            acquisitions[key, event["token"]] = Acquisition(event)
        elif kind == "breaking":
            breaks[key].append(event["at"])
        elif kind == "wrote":
            writes.append(event)
        elif kind in ("believed", "sending", "acked", "releasing"):
            acquisition = acquisitions.get((key, event["token"]))
            if acquisition is None:
                found.append(
                    f"{event['who']} {kind} under the token {event['token']} of {key}, which nobody was granted"
                )
            elif kind == "believed":
                acquisition.first_believed = acquisition.first_believed or event["at"]
                acquisition.last_believed = event["at"]
            elif kind == "sending":
                acquisition.sent.append(event["data"])
            elif kind == "acked":
                acquisition.acked.append(event["data"])
            else:
                acquisition.deletes |= event["delete"]
    by_key = defaultdict(list)
    for acquisition in acquisitions.values():
        by_key[acquisition.key].append(acquisition)
    for key, held in by_key.items():
        held.sort(key=lambda acquisition: acquisition.token)
        found += two_at_once(held, breaks[key])
        found += falling_tokens(held)
        found += lost_payloads(held)
    return found + list(fallen_writes(writes))


def two_at_once(held, breaks):
    """Finds two holders that believe at the same time. After a break that is allowed, until the next heartbeat."""
    held = sorted((one for one in held if one.first_believed), key=lambda one: one.first_believed)
    for index, one in enumerate(held):
        for other in held[index + 1 :]:
            if other.first_believed >= one.last_believed:
                break
            if not any(one.asked <= at <= other.granted for at in breaks):
                together = (min(one.last_believed, other.last_believed) - other.first_believed) / 1e6
                yield f"two at once for {together:.1f} ms: {one} and {other}"


def falling_tokens(held):
    """Finds a grant that was asked for after another one, and has the lower token."""
    latest = None
    for one in sorted(held, key=lambda one: one.token, reverse=True):
        # The comparison is with the earliest grant of a higher token, which must not precede this request.
        if latest is not None and latest.granted < one.asked:
            yield f"the token fell: {one} was asked for after {latest} had been granted"
        if latest is None or one.granted < latest.granted:
            latest = one


def lost_payloads(held):
    """Finds a successor that got neither the last acknowledged payload nor a later one that was sent."""
    possible = {None}
    for one in held:
        if one.found not in possible:
            yield f"a payload was lost: {one} found {one.found!r}, and not one of {sorted(map(str, possible))}"
        possible = {one.found}
        if one.sent:
            last_acked = max((one.sent.index(data) for data in one.acked), default=None)
            possible = set(one.sent) | possible if last_acked is None else set(one.sent[last_acked:])
        if one.deletes:
            possible.add(None)


def fallen_writes(writes):
    """Finds falling or shared tokens among the accepted writes of a key."""
    last, writer = {}, {}
    for write in writes:
        key, token = write["key"], write["token"]
        if token < last.get(key, 0):
            yield f"a late write was accepted: token {token} of {key} after {last[key]}"
        if writer.setdefault((key, token), write["writer"]) != write["writer"]:
            yield f"two writers shared the token {token} of {key}"
        last[key] = max(token, last.get(key, 0))


def read(path):
    """The events of one file. The last line of a process that was killed may be half a line."""
    lines = pathlib.Path(path).read_text().splitlines()
    for number, line in enumerate(lines):
        try:
            yield json.loads(line)
        except ValueError:
            if number + 1 < len(lines):
                raise


def judged(history, rules):
    """Returns all violations of the named rules, a sentence each, which begins with the name of its rule."""
    return [f"{name}: {sentence}" for name, rule in rules.items() for sentence in rule(history)]


def main(paths, violations=violations):
    """Prints the violations of the histories in these files."""
    events = sorted((event for path in paths for event in read(path)), key=lambda event: event["at"])
    found = violations(events)
    for violation in found:
        print(f"VIOLATION: {violation}")
    kinds = defaultdict(int)
    for event in events:
        kinds[event["event"]] += 1
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    print(f"{len(events)} events, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
