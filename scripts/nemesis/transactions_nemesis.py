"""Agents of all clients change and read the same items in transactions, while everything around them fails. A checker
reads their history afterwards.

Two services work on one DynamoDB, which a third one exposes. One proxy stands before the services, and another one
before DynamoDB. scripts/contend.sh runs this, and lists its requirements. See --help for the faults.
"""

import itertools
import random
import time
from collections import Counter

import transactions_checker
from agents import Stage, Told, arguments, post, run_for

TABLE = "contended"
EPOCH = 8
"""Seconds for which the items of the same names are changed. Lists grow without end otherwise."""
HOT = 3
CUT_OFF = 0.06
"""The share of transactions of which an add does not arrive. Their clients try it for half a minute."""
ANSWERED_OR_UNKNOWN = (None, "Unavailable", "Throttled")


class Bank:
    """What the agents do."""

    def __init__(self, history, rng, front):
        self.history, self.rng, self.front = history, rng, front
        self.numbers = itertools.count(1)
        self.unknown, self.keys = {}, set()
        self.ends = Counter()

    def key(self, kind, number):
        key = f"{kind}{number}-{int(time.monotonic() / EPOCH)}"
        self.keys.add(key)
        return key

    def hot(self, kind="list"):
        return self.key(kind, self.rng.randrange(HOT))

    def act(self, agent):
        """One transaction, or one look from outside."""
        chance = self.rng.random()
        if chance < 0.75:
            return self.look(agent)
        name = f"{agent.name}-{next(self.numbers)}"
        plans = [self.read_and_append, self.skew, self.twice, self.twice, self.visits, self.delete, self.alone]
        plan = self.cut_off if self.rng.random() < CUT_OFF else self.rng.choice(plans)
        begun = self.send(agent, name, "begin", {"do": "begin"}, private=plan == self.alone)
        if "error" in begun:
            return None
        self.unknown[name] = begun["id"]
        if plan(agent, name) and not self.rng.random() < 0.1:
            return self.commit(agent, name)
        return self.rollback(agent, name)

    def send(self, agent, name, event, order, **members):
        """An order of a transaction, between the event before it and the event that its answer means."""
        self.history.note(agent.name, event, tx=name, **members)
        answer = agent.ask(order)
        if answer.get("error") in ("RolledBack", "NotFound"):
            self.history.note(agent.name, "aborted", tx=name, why=answer.get("detail"))
        else:
            self.history.note(agent.name, "alive", tx=name)
        return answer

    def get(self, agent, name, key):
        answer = self.send(agent, name, "alive", {"do": "get", "key": key})
        if "error" in answer:
            return None
        self.history.note(agent.name, "read", tx=name, key=key, value=answer["value"])
        return answer

    def change(self, agent, name, key, amount=None):
        members = {"amount": amount} if amount else {"value": f"{name}:{next(self.numbers)}"}
        order = {"do": "change", "key": key, **members}
        answer = self.send(agent, name, "add" if amount else "append", order, key=key, **members)
        # A change that was not answered is part of the transaction, or the commit is refused.
        return answer.get("error") in ANSWERED_OR_UNKNOWN

    def read_and_append(self, agent, name):
        keys = sorted({self.hot(), self.hot()})
        return all(self.get(agent, name, key) and self.change(agent, name, key) for key in keys)

    def skew(self, agent, name):
        one, other = self.hot(), self.hot()
        return self.get(agent, name, one) and self.change(agent, name, other) and self.get(agent, name, other)

    def twice(self, agent, name):
        """Readers see most of this item: it is as it was before, or as it is after all of these changes."""
        key = self.key("watched", 0)
        return all(self.change(agent, name, key) for _ in range(self.rng.randint(2, 3)))

    def visits(self, agent, name):
        key = self.hot("count")
        return all(self.change(agent, name, key, amount=1) for _ in range(self.rng.randint(2, 3)))

    def delete(self, agent, name):
        key = self.key("fleeting", 0)
        answer = self.get(agent, name, key)
        if answer and answer["value"]:
            gone = self.send(agent, name, "delete", {"do": "delete", "key": key}, key=key)
            return gone.get("error") in ANSWERED_OR_UNKNOWN
        return answer and self.change(agent, name, key)

    def alone(self, agent, name):
        """Nobody else wants the item, and the transaction takes its time."""
        key = self.key(f"alone-{agent.name}-", next(self.numbers))
        for _ in range(3):
            if not self.change(agent, name, key):
                return False
            time.sleep(self.rng.uniform(0, 1))
        return True

    def cut_off(self, agent, name):
        """None of the requests of an add arrives. A commit without its change is refused."""
        first, then = sorted({self.key("cut", 0), self.key("cut", 1)})
        if not self.change(agent, name, first):
            return False
        parts = b"/v1/transactions/add", self.unknown[name].encode()
        self.front.lose(*parts)
        try:
            is_in_doubt = self.change(agent, name, then)
        finally:
            self.front.lose_no_more(*parts)
        self.ends["cut off"] += 1
        return is_in_doubt

    def commit(self, agent, name):
        answer = self.send(agent, name, "committing", {"do": "commit"})
        if "error" not in answer:
            self.ended(agent, name, "committed")
        elif answer["error"] == "RolledBack":
            self.ended(agent, name, None)
        elif answer["error"] in ("Contended", "InvalidRequest"):
            return self.rollback(agent, name)
        self.ends[answer.get("error", "committed")] += 1
        return answer

    def rollback(self, agent, name):
        answer = self.send(agent, name, "rolling", {"do": "rollback"})
        if answer.get("error") in (None, "RolledBack", "NotFound"):
            self.ended(agent, name, None if "error" in answer else "aborted")
        elif answer["error"] == "Committed":
            self.ended(agent, name, "committed")
        self.ends["rolled back"] += 1
        return answer

    def ended(self, agent, name, event):
        if event:
            self.history.note(agent.name, event, tx=name)
        self.unknown.pop(name, None)

    def look(self, agent):
        asked, level = time.monotonic_ns(), self.rng.choice(["committed", "committed", "committed", "uncommitted"])
        kinds = [
            ("watched", 0),
            ("watched", 0),
            ("list", self.rng.randrange(HOT)),
            ("count", self.rng.randrange(HOT)),
            ("fleeting", 0),
        ]
        key = self.key(*self.rng.choice(kinds))
        order = (
            {"do": "list", "level": level} if self.rng.random() < 0.1 else {"do": "look", "key": key, "level": level}
        )
        answer = agent.ask(order)
        if "error" not in answer:
            found = answer["items"] if "items" in answer else {key: answer["value"]}
            # What a listing does not show is not there. Items of earlier times are looked at in the end.
            for one in {*found, key}:
                self.history.note(agent.name, "seen", key=one, value=found.get(one), level=level, asked=asked)
        return answer


def settle(bank, history, address):
    """Decides what is unknown, and reads all items."""
    for name, ident in list(bank.unknown.items()):
        if ident:
            history.note("settling", "rolling", tx=name)
            status, document = post(address, "/v1/transactions/rollback", {"transactionId": ident})
            if status == 200 or document.get("type", "").endswith(("rolled-back", "transaction-not-found")):
                history.note("settling", "aborted", tx=name)
    for key in sorted(bank.keys):
        asked = time.monotonic_ns()
        status, document = post(address, "/v1/items/get", {"tableName": TABLE, "key": {"id": {"S": key}}})
        if status != 200:
            raise RuntimeError(f"{key} cannot be read: {document}")
        history.note(
            "settling", "seen", key=key, value=plain(document.get("item")), level="committed", asked=asked, final=True
        )


def plain(item):
    if not item:
        return None
    return int(item["n"]["N"]) if "n" in item else [value["S"] for value in item["l"]["L"]]


def main():
    args = arguments(__doc__.partition("\n")[0])
    rng = random.Random(args.seed)
    print(f"contend: transactions, {args.seconds:g} s, seed {args.seed}", flush=True)
    history = Told()
    with Stage(args, {"CONTEND_TABLE": TABLE}) as stage:
        bank = Bank(history, rng, stage.front)
        stage.create_table(TABLE)
        agents = stage.agents(args.agents)
        faults = run_for(args.seconds, agents, bank.act, rng, stage)
        stage.calm()
        settle(bank, history, stage.store.target)
        found = transactions_checker.violations(history.events())
        status = history.verdict(args, found, bank.ends, agents, stage.counts() + faults, "committed")
    raise SystemExit(status)


if __name__ == "__main__":
    main()
