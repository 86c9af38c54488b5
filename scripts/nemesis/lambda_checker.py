"""Reads the history of functions under a lock afterwards, and lists its violations. It knows store and ends alone.

A history is a list of events in the order of their happening, each a JSON object with `event`:

  wrote     a write came to the store     key, token, who (the invocation), accepted
  ended     an invocation ended           who, how (returned, raised, timed-out, crashed)
  found     the lock after that end       key, who, token: of the row's holder, or null where it is free
  probed    the same, a margin and the service's skew after the deadline: an acquire by the service's clock
                                          key, who, token: of the holder that refused it, or null
"""

from collections import defaultdict

KILLED = ("timed-out", "crashed")


def violations(events):
    """Returns all violations, a sentence each."""
    found = []
    tokens = {}  # (key, token) -> invocation
    own = defaultdict(set)  # invocation -> its tokens by key
    highest = defaultdict(int)
    ends = {}
    for event in events:
        kind, who, key, token = (event.get(name) for name in ("event", "who", "key", "token"))
        if kind == "wrote":
            first = tokens.setdefault((key, token), who)
            own[who].add((key, token))
            if first != who:
                found.append(f"one token for two: {token} of {key}, to {first} and {who}")
            if event["accepted"] and token < highest[key]:
                found.append(f"two at once: {who} wrote {key} with the token {token} after {highest[key]}")
            highest[key] = max(highest[key], token)
        elif kind == "ended":
            ends[who] = event["how"]
        elif kind == "found" and (key, token) in own[who] and ends[who] not in KILLED:
            found.append(f"left behind: {who} {ends[who]}, and holds {key} with the token {token}")
        elif kind == "probed" and (key, token) in own[who]:
            found.append(f"held beyond the margin: {who}, {key} with the token {token}")
    return found
