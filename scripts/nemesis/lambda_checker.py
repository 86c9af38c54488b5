"""Reads the history of functions under a lock afterwards, and lists its violations. It knows store and ends alone.

A history is a list of events in the order of their happening, each a JSON object with `event`:

  wrote     a write came to the store     key, token, who (the invocation), accepted
  ended     an invocation ended           who, how (returned, raised, timed-out, crashed);
            once: the key of an event that must have one result, and answer: what came back for it;
            shut-down-well: whether its sandbox was shut down then, and its extensions ended well;
            unreleased: whether its log says that the release had no answer in the time that was left
  found     the lock after that end       key, who, token: of the row's holder, or null where it is free
  probed    the same, a margin, the service's skew and the way of a request after the deadline: an acquire by the
            service's clock               key, who, token: of the holder that refused it, or null
  shut      a sandbox was shut down, and its extensions ended well
                                          kept: the tokens that its invocations left, each [key, token]
  left      the lock after that           key, token: of the row's holder, or null where it is free
"""

from collections import defaultdict

KILLED = ("timed-out", "crashed", "unreleased")


def violations(events):
    """Returns all violations, a sentence each."""
    found = []
    tokens = {}  # (key, token) -> invocation
    own = defaultdict(set)  # invocation -> its tokens by key
    highest = defaultdict(int)
    ends = {}
    answers = {}  # the key of an event with one result -> its result, and the invocation that gave it first
    shut = set()  # what sandboxes kept that are gone
    for event in events:
        kind, who, key, token = (event.get(name) for name in ("event", "who", "key", "token"))
        if kind == "wrote":
            first = tokens.setdefault((key, token), who)
            own[who].add((key, token))
            if first != who:
                found.append(f"one token for two: {token} of {key}, to {first} and {who}")
            if event["accepted"] and key in answers and (key, token) not in answers[key]["before"]:
                found.append(
                    f"ran again: {who} under {key} with the token {token}, after a result for {answers[key]['who']}"
                )
            if event["accepted"] and token < highest[key]:
                found.append(f"two at once: {who} wrote {key} with the token {token} after {highest[key]}")
            highest[key] = max(highest[key], token)
        elif kind == "ended":
            # After a shutdown in good order, nothing is left by a kill either.
            ends[who] = "shut-down" if event.get("shut-down-well") else event["how"]
            # Then the lease ends the lock, as after a kill, and the log said so.
            if event.get("unreleased"):
                ends[who] = "unreleased"
            if event.get("once") is not None and event["how"] == "returned":
                before = {known for known in tokens if known[0] == event["once"]}
                first = answers.setdefault(event["once"], {"answer": event["answer"], "who": who, "before": before})
                if first["answer"] != event["answer"]:
                    results = f"{first['answer']} for {first['who']}, {event['answer']} for {who}"
                    found.append(f"two results: {event['once']} gave {results}")
        elif kind == "shut":
            shut |= {tuple(kept) for kept in event["kept"]}
        elif kind == "left" and (key, token) in shut:
            found.append(f"kept beyond its sandbox: {key} with the token {token}")
        elif kind == "found" and (key, token) in own[who] and ends[who] not in KILLED:
            found.append(f"left behind: {who} {ends[who]}, and holds {key} with the token {token}")
        elif kind == "probed" and (key, token) in own[who]:
            found.append(f"held beyond the margin: {who}, {key} with the token {token}")
    return found
