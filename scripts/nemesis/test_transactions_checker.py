"""The checker finds the anomalies of a history, each by its own rule, and nothing in a correct one."""

import unittest

from transactions_checker import RULES, SECOND, violations


def tx(name, *steps, at=0, **begin):
    """A transaction whose steps come one nanosecond after the other, unless a step says when."""
    events = [{"at": at, "who": name, "event": "begin", "tx": name, **begin}]
    for step in steps:
        kind, *rest = step.split() if isinstance(step, str) else step
        events.append({"at": events[-1]["at"] + 1, "who": name, "event": kind, "tx": name, **members(kind, *rest)})
    return events


def members(kind, key=None, value=None):
    if kind == "add":
        return {"key": key, "amount": int(value)}
    if kind == "read":
        return {
            "key": key,
            "value": value if not isinstance(value, str) else None if value == "none" else value.split(","),
        }
    if kind == "append":
        return {"key": key, "value": value}
    return {"key": key} if key else {}


def look(key, value, at=1000, asked=0, level="committed", **more):
    """A read from outside. Unless `asked` is given, it began before everything else."""
    value = value.split(",") if isinstance(value, str) else value
    return [
        {"at": at, "who": "reader", "event": "seen", "key": key, "value": value, "asked": asked, "level": level, **more}
    ]


def delayed(events, seconds):
    """The same, where the last event comes later."""
    return [*events[:-1], {**events[-1], "at": events[-1]["at"] + int(seconds * SECOND)}]


def check(*histories, rules=RULES):
    return violations(sorted(sum(histories, []), key=lambda event: event["at"]), rules)


DONE = ("committing", "committed")

BAD = {
    "G0": [
        tx("T1", "append x 1", "append y 2", *DONE),
        tx("T2", "append x 3", "append y 4", *DONE),
        look("x", "1,3"),
        look("y", "4,2"),
    ],
    "G1a": [tx("T1", "append x 1", "committing", "aborted"), look("x", "1")],
    "G1a, dirty": [tx("T1", "append x 1", *DONE, at=100), look("x", "1", at=101)],
    "G1b": [tx("T1", "append x 1", "append x 2", *DONE), look("x", "1")],
    "G1c": [
        tx("T1", "append x 1", "append y 2", *DONE),
        tx("T2", "read x 1", "append y 3", *DONE, at=10),
        look("y", "3,2"),
    ],
    "G-single": [
        tx("T1", "read x 1", "append x 2", *DONE, at=10),
        tx("T2", "read x 1", "append x 3", *DONE, at=10),
        tx("T0", "append x 1", *DONE),
        look("x", "1,2,3"),
    ],
    "G2": [
        tx("T1", "read x none", "append y 1", *DONE),
        tx("T2", "read y none", "append x 2", *DONE),
        look("x", "2"),
        look("y", "1"),
    ],
    "internal": [tx("T1", "append x 1", "read x none")],
    "duplicate": [tx("T1", "append x 1", *DONE), look("x", "1,1")],
    "incompatible order": [
        tx("T1", "append x 1", *DONE),
        tx("T2", "append x 2", *DONE),
        tx("T3", "append x 3", *DONE),
        look("x", "1,2"),
        look("x", "1,3"),
    ],
    "lost": [tx("T1", "append x 1", *DONE), look("x", None, asked=100)],
    "torn": [
        tx("T1", "append x 1", "append y 2", "committing"),
        look("x", "1", final=True),
        look("y", None, final=True),
    ],
    "undead": [
        tx("T0", "append x 1", *DONE),
        tx("T1", "read x 1", "delete x", *DONE, at=10),
        look("x", "1", asked=100),
    ],
    "deleted twice": [
        tx("T0", "append x 1", *DONE),
        tx("T1", "read x 1", "delete x", *DONE, at=10),
        tx("T2", "read x 1", "delete x", *DONE, at=10),
    ],
    "two outcomes": [tx("T1", "append x 1", "committing", "committed", "aborted")],
    "exactly once": [tx("T1", "add n 1", "add n 1", *DONE), look("n", 1, asked=100)],
    "evicted": [tx("T1", "append x 1", "aborted", private=True)],
    "late answer": [delayed(tx("T1", "append x 1", *DONE), 40), look("x", "1")],
}
"""One history for each rule, which that rule alone finds."""


class TransactionsCheckerTest(unittest.TestCase):
    def test_good_history_is_good(self):
        good = [
            tx("T1", "read x none", "append x 1", "read x 1", "add n 2", "add n 2", *DONE),
            tx("T2", "read x 1", "append x 2", "append x 3", "append y 4", *DONE, at=100),
            tx("T3", "append x 5", "refused x", "append y 6", "aborted", at=150),
            tx("T4", "append x 7", "committing", at=200),
            tx("T5", "read z none", "append z 8", *DONE, at=300),
            tx("T6", "read z 8", "delete z", "read z none", *DONE, at=310),
            tx("T7", "read z none", "append z 9", *DONE, at=320),
            tx("T8", "append x 10", at=330),
            look("x", "1", asked=50, at=150),
            look("x", "1,2,3,7", asked=150, final=True),
            look("z", "9", asked=330),
            look("z", None, asked=309),
            look("y", "4", asked=150),
            look("n", 4, asked=150),
            look("x", "1,2,3,7,10", level="uncommitted"),
        ]
        self.assertEqual(check(*good), [])

    def test_each_rule_finds_its_bad_history(self):
        for name in RULES:
            with self.subTest(name):
                found = check(*BAD[name])
                self.assertTrue(found, "nothing was found")
                self.assertEqual({violation.partition(":")[0] for violation in found}, {name})

    def test_bad_history_passes_without_its_rule(self):
        for name in RULES:
            with self.subTest(name):
                rest = {other: rule for other, rule in RULES.items() if other != name}
                self.assertEqual(check(*BAD[name], rules=rest), [])

    def test_unknown_transaction_may_have_happened_or_not(self):
        unknown = tx("T1", "append x 1", "add n 1", "committing")
        for value, number in (("1", 1), (None, 0)):
            self.assertEqual(check(unknown, look("x", value, final=True), look("n", number, final=True)), [])

    def test_value_that_nobody_wrote_is_found(self):
        self.assertIn("nobody wrote", check(look("x", "9"))[0])

    def test_change_that_the_commit_left_out_is_found(self):
        found = check(
            tx("T1", "append x 1", "append y 2", *DONE), look("x", "1", asked=100), look("y", None, asked=100)
        )
        self.assertEqual(len(found), 1, found)
        self.assertIn("lost", found[0])

    def test_stale_read_of_a_transaction_is_found(self):
        found = check(tx("T1", "append x 1", *DONE), tx("T2", "read x none", at=100))
        self.assertIn("misses ['1'] of T1", found[0])

    def test_counter_shows_no_addition_before_its_commit(self):
        found = check(tx("T1", "add n 5", *DONE, at=100), look("n", 5, at=101))
        self.assertIn("exactly once", found[0])

    def test_cycle_names_its_members_and_items(self):
        self.assertIn("T1 -rw x-> T2", check(*BAD["G2"])[0])

    def test_cycle_of_three_reads_over_many_transactions_is_found(self):
        chain = [tx(f"T{n}", f"read k{n} none", f"append k{(n + 1) % 300} {n}", *DONE) for n in range(300)]
        found = check(*chain, *(look(f"k{(n + 1) % 300}", str(n)) for n in range(300)))
        self.assertEqual([violation.partition(":")[0] for violation in found], ["G2"])

    def test_answer_that_the_outcome_is_unknown_may_be_late(self):
        unknown = delayed(tx("T1", "append x 1", "committing", "alive"), 40)
        self.assertIn("late answer", check(unknown, look("x", "1"))[0])
        self.assertEqual(check(unknown[:-1], look("x", "1")), [])

    def test_killed_caller_is_not_late_when_others_settle(self):
        killed = tx("T1", "append x 1", "committing")
        settled = [{"at": 40 * SECOND, "who": "settling", "event": "rolling", "tx": "T1"}]
        self.assertEqual(check(killed, look("x", "1"), settled), [])

    def test_transaction_that_was_silent_for_long_may_be_evicted(self):
        self.assertEqual(check(delayed(tx("T1", "append x 1", "aborted", private=True), 40)), [])

    def test_transaction_may_be_rolled_back_by_its_own_caller(self):
        self.assertEqual(check(tx("T1", "append x 1", "rolling", "aborted", private=True)), [])


if __name__ == "__main__":
    unittest.main()
