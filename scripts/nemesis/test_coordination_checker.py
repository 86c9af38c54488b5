"""The checker finds the violations of a history, each by its own rule, and nothing in a correct one."""

import unittest

from coordination_checker import RULES, SECOND, SLACK, violations

LEASE = 2_000


def event(at, who, kind, **members):
    return {"at": int(at * SECOND), "who": who, "event": kind, **members}


def capacity(key, permits, at=0, answered=0.1):
    events = [event(at, "operator", "setting", key=key, capacity=permits)]
    return events + ([event(answered, "operator", "set", key=key, capacity=permits)] if answered else [])


def asked(at, name, keys="pool", permits=1, **members):
    return [event(at, name, "asked", claim=name, keys=keys.split(), permits=permits, **members)]


def waiting(name, start, end):
    return [event(at / 2, name, "waiting", claim=name) for at in range(int(start * 2), int(end * 2) + 1)]


def did(at, name, kind, **members):
    return [event(at, name, kind, claim=name, **members)]


def held(name, token, start, end, keys="pool", permits=1, since=None, **members):
    """A grant, and belief from `start` to `end`."""
    return [
        *asked(start - 0.5 if since is None else since, name, keys, permits, **members),
        *did(start, name, "granted", token=token),
        *did(start + 0.01, name, "believed"),
        *did(end, name, "believed"),
    ]


def entry(owner, version="v", permits=1, number=1, lease=LEASE, ident=None):
    return {
        "id": ident or owner,
        "owner": owner,
        "version": version,
        "leaseMs": lease,
        "permits": permits,
        "number": number,
    }


def view(at, holders=(), queue=(), key="pool", size=1, available=None):
    taken = sum(one["permits"] for one in holders)
    available = max(0, size - taken) if available is None else available
    members = {"asked": int((at - 0.01) * SECOND), "capacity": size, "available": available}
    return [
        event(
            at,
            "observer",
            "viewed",
            key=key,
            holders=[dict(one) for one in holders],
            queue=[dict(one) for one in queue],
            **members,
        )
    ]


def views(start, end, *arguments, **members):
    return sum((view(at / 4, *arguments, **members) for at in range(int(start * 4), int(end * 4) + 1)), [])


def check(*histories, rules=RULES):
    return violations(sorted(sum(histories, []), key=lambda event: event["at"]), rules)


WAITERS = [*asked(1, "A"), *waiting("A", 1, 60)]

BAD = {
    "too many believe": [held("A", 1, 1, 5), held("B", 2, 3, 6)],
    "too many work": [
        [event(at, "job", "beat", key="pool", token=1, permits=1) for at in (1, 2, 3)],
        [event(at, "job", "beat", key="pool", token=2, permits=1) for at in (2.5, 4)],
    ],
    "unknown belief": [asked(1, "A"), did(2, "A", "believed")],
    "token twice": [held("A", 1, 1, 2), held("B", 1, 2.9, 4, since=1.1)],
    "token falls": [held("A", 5, 1, 2), held("B", 4, 4, 5, since=3)],
    "count": [view(1, [entry("A")], size=3, available=3)],
    "capacity undone": [capacity("pool", 2), capacity("pool", 3, 1, 1.1), view(2, size=2)],
    "ghost": [held("A", 1, 1, 2), did(2.1, "A", "releasing"), did(2.2, "A", "released"), view(3, [entry("A")])],
    "outlives its break": [
        held("A", 7, 1, 2),
        [event(2, "operator", "breaking", key="pool"), event(2.1, "operator", "broke", key="pool", number=7)],
        view(3, [entry("A", number=7)]),
    ],
    "half": [held("A", 1, 1, 5, keys="a b"), view(2, [entry("A")], key="a"), view(2, key="b")],
    "pushed in": [
        capacity("pool", 2),
        view(1, (), [entry("A")], size=2),
        held("B", 1, 3, 4, keys="a pool", since=2, shares={"pool": 2}),
        view(3.5, [entry("B", permits=2)], [entry("A")], size=2),
    ],
    "passed": [
        asked(1, "A"),
        waiting("A", 1, 9),
        view(2, [entry("C")], [entry("A", number=1, lease=9_000)]),
        held("B", 9, 5, 6, since=2.5),
        view(3, [entry("C")], [entry("A", number=1, lease=9_000), entry("B", number=2)]),
        view(5.2, [entry("B", number=9)], [entry("A", number=1, lease=9_000)]),
    ],
    "stuck": [WAITERS, views(2, 40, (), [entry("Z", number=1), entry("A", number=2)])],
    "kept from": [views(1, 40, [entry("Z")]), asked(39, "A"), did(39.6, "A", "refused", judges=True)],
    "done twice": [
        held("A", 1, 1, 2, occurrence="02"),
        did(2.1, "A", "completing"),
        did(2.2, "A", "completed"),
        held("B", 2, 4, 5, occurrence="02", since=3),
    ],
    "refused wrongly": [asked(1, "A", "a pool"), did(2, "A", "left", error="WrongKind")],
}
"""One history for each rule, which that rule alone finds."""


class CoordinationCheckerTest(unittest.TestCase):
    def test_waiter_that_leaves_permits_for_five_seconds_is_passed(self):
        for left in (4, 6):
            alive = {"lease": 60_000}
            queue = [entry("A", number=1, **alive), entry("B", number=2, **alive)]
            found = check(
                asked(1, "A"),
                waiting("A", 1, 12),
                held("B", 9, 10, 11, since=2.5),
                views(3, 10 - left - 0.75, [entry("C", **alive)], queue),
                views(10 - left - 0.5, 9.5, (), queue),
                view(9.8, [entry("B", number=9, **alive)], queue[:1]),
                view(11, [entry("B", number=9, **alive)], queue[:1]),
                rules={"passed": RULES["passed"]},
            )
            self.assertEqual(bool(found), left < 5, left)

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

    def test_permits_are_counted_by_weight(self):
        two = [capacity("pool", 5), held("A", 1, 1, 5, permits=3), held("B", 2, 2, 5, permits=2)]
        self.assertEqual(check(*two), [])
        found = check(*two, held("C", 3, 4, 5))
        self.assertIn("6 permits of pool were out, and there are 5", found[0])

    def test_permits_of_several_keys_are_counted_by_key(self):
        several = held("A", 1, 1, 5, keys="a pool", shares={"pool": 3})
        history = [capacity("pool", 5), several, held("B", 2, 2, 5, permits=2)]
        self.assertEqual(check(*history), [])
        self.assertIn("6 permits of pool were out", check(*history, held("C", 3, 4, 5))[0])
        self.assertIn("2 permits of a were out", check(several, held("C", 3, 4, 5, keys="a"))[0])

    def test_half_of_several_is_told_by_permits_and_token(self):
        several = [capacity("pool", 5), held("A", 7, 1, 5, keys="a pool", shares={"pool": 3})]
        lock = view(2, [entry("A", number=7)], key="a")
        for permits, token, found in ((3, 7, 0), (2, 7, 1), (3, 8, 1)):
            shown = view(2, [entry("A", permits=permits, number=token)], size=5)
            self.assertEqual(len(check(*several, lock, shown)), found, (permits, token))

    def test_several_pass_tickets_that_went_or_are_too_large(self):
        history = BAD["pushed in"]
        for before, after in ((entry("A"), None), (None, entry("A")), (entry("A", permits=3), entry("A", permits=3))):
            queues = [view(1, (), [before] if before else [], size=2), view(3.5, (), [after] if after else [], size=2)]
            self.assertEqual(check(history[0], history[2], *queues, rules={"pushed in": RULES["pushed in"]}), [])

    def test_permits_that_were_given_back_are_free(self):
        history = [capacity("pool", 5), held("A", 1, 1, 6, permits=5), did(2, "A", "keeping", permits=1)]
        self.assertEqual(check(*history, held("B", 2, 3, 5, permits=4)), [])
        self.assertEqual(len(check(*history, held("B", 2, 3, 5, permits=5))), 1)

    def test_holders_keep_what_they_have_after_a_cut(self):
        cut = [capacity("pool", 2), held("A", 1, 1, 9), held("B", 2, 2, 9), capacity("pool", 1, 3, 3.1)]
        self.assertEqual(check(*cut), [])
        self.assertEqual(len(check(*cut, held("C", 3, 5, 6))), 1)

    def test_broken_run_completes_nothing(self):
        run = held("A", 7, 1, 3, occurrence="02")
        breaking = event(2, "operator", "breaking", key="pool")
        for broke, completing in ((2.1, 2.5), (2.1, 2.05), (None, 2.5)):
            answered = [event(broke, "operator", "broke", key="pool", number=7)] if broke else []
            found = check(run, [breaking], answered, did(completing, "A", "completing"), did(2.6, "A", "completed"))
            self.assertEqual(bool(found), broke is not None and broke < completing, (broke, completing))

    def test_broken_entry_may_be_shown_until_the_break_is_answered(self):
        for number, asked_at, found in ((7, 2.05, False), (8, 3, False), (7, 3, True)):
            history = [*BAD["outlives its break"][:2], view(asked_at, [entry("A", number=number)])]
            self.assertEqual(bool(check(*history)), found, (number, asked_at))

    def test_break_excuses_those_that_it_broke(self):
        broken = [event(2, "operator", "breaking", key="pool")]
        self.assertEqual(check(held("A", 1, 1, 5), held("B", 2, 3, 6), broken), [])
        # One that left before, and was answered later, may have broken the first.
        answered = [event(0.2, "operator", "breaking", key="pool"), event(3, "operator", "broke", key="pool", number=1)]
        self.assertEqual(check(held("A", 1, 1, 2.9), held("B", 2, 2.5, 6), answered), [])
        earlier = [
            event(0.2, "operator", "breaking", key="pool"),
            event(0.3, "operator", "broke", key="pool", number=0),
        ]
        self.assertEqual(len(check(held("A", 1, 1, 5), held("B", 2, 3, 6), earlier)), 1)

    def test_capacity_without_an_answer_may_come_or_not(self):
        unanswered = [capacity("pool", 2), capacity("pool", 3, 1, None)]
        self.assertEqual(check(*unanswered, view(2, size=2), view(3, size=3)), [])
        later = capacity("pool", 4, 4, 4.1)
        self.assertEqual(len(check(*unanswered, later, view(5, size=3))), 1)

    def test_spent_ticket_is_a_ghost(self):
        found = check(held("A", 1, 1, 2), view(1.5, [entry("A", number=9)], [entry("A", ident="t-1")]))
        self.assertIn("ghost: pool has a ticket of A", found[0])

    def test_lock_remembers_its_last_two_holders(self):
        ended = [*held("A", 1, 1, 2), *did(2.2, "A", "released")]
        others = [held("B", 2, 3, 3.5), held("C", 3, 4, 4.5)]
        late = view(6, [entry("A", number=9)])
        self.assertEqual(len(check(ended, others[0], late)), 1)
        self.assertEqual(check(ended, *others, late), [])
        self.assertEqual(len(check(capacity("pool", 1), ended, *others, late)), 1)

    def test_first_request_of_a_process_may_come_back(self):
        def ghost(ends, first, others="pool"):
            ended = [*held("A", 1, 1, 2, first=first), *did(2.1, "A", "released")]
            later = sum((held(f"B{one}", 2 + one, 3 + one, 3.5 + one, others) for one in range(ends)), [])
            return check(capacity("pool", 99), ended, later, view(40, [entry("A", number=99)], size=99))

        for ends, first, found in ((15, ["pool"], True), (16, ["pool"], False), (16, [], True)):
            self.assertEqual(bool(ghost(ends, first)), found, (ends, first))
        for ends, found in ((0, True), (1, False)):
            self.assertEqual(bool(ghost(ends, ["pool"], "pool a")), found, ends)

    def test_waiter_that_was_paused_may_be_passed(self):
        history = list(BAD["passed"])
        history[1] = waiting("A", 1, 2)
        self.assertEqual(check(*history), [])

    def test_waiter_that_left_what_was_free_may_be_passed(self):
        history = BAD["passed"] + [views(0.1, 4.9, (), [entry("A", "w", number=1)])]
        history[2] = history[4] = []
        history += [view(4.95, (), [entry("A", "w", number=1), entry("B", number=2)])]
        self.assertEqual(check(*history), [])

    def test_only_a_certain_overtaking_is_found(self):
        for index, instead in (
            (4, []),  # nobody saw the younger one in the queue
            (5, []),  # nobody saw the older one wait afterwards
            (4, view(4, [entry("C")], [entry("A", lease=2_000), entry("B", number=2)])),  # the older one may be dead
            (5, view(5.2, [entry("C", number=10)], [entry("A", number=1, lease=9_000)])),
        ):
            history = list(BAD["passed"])
            history[index] = instead
            self.assertEqual(check(*history), [], index)

    def test_small_claim_may_pass_where_a_large_one_does_not_fit(self):
        history = [
            capacity("pool", 4),
            asked(1, "A", permits=5),
            waiting("A", 1, 9),
            view(2, [entry("C", permits=4)], [entry("A", permits=5)], size=4),
            view(3, [entry("C", permits=4)], [entry("A", permits=5), entry("B", number=2)], size=4),
            held("B", 9, 5, 6, since=2.5),
        ]
        self.assertEqual(check(*history), [])

    def test_ticket_above_the_capacity_blocks_nobody(self):
        oversize = entry("B", permits=5, number=1)
        found = check(
            asked(1, "B", permits=5), waiting("B", 1, 60), WAITERS, views(2, 40, (), [oversize, entry("A", number=2)])
        )
        self.assertIn("stuck: A waits", found[0])

    def test_permits_of_the_dead_come_back_to_a_waiter(self):
        self.assertIn("stuck: A waits", check(WAITERS, views(2, 40, [entry("Z")], [entry("A")]))[0])
        alive = [view(at / 4, [entry("Z", str(at))], [entry("A")]) for at in range(8, 160)]
        self.assertEqual(check(WAITERS, *alive), [])

    def test_permits_of_the_dead_come_back_after_a_lease_and_a_look(self):
        """The bound of docs/coordination.md, and the time for some tries under faults."""
        for lease, bound in ((4_000, 8), (30_000, 50), (60_000, 80)):
            for late, found in ((-1, False), (2, True)):
                end = 2 + bound + SLACK / SECOND + late
                seen = views(2, end, [entry("Z", lease=lease)], [entry("A")])
                found_late = bool(check(asked(1, "A"), waiting("A", 1, end + 1), seen))
                self.assertEqual(found_late, found, (lease, late))

    def test_dead_ticket_holds_up_others_for_one_lease(self):
        dead = entry("Z", number=1, lease=30_000)
        self.assertEqual(check(WAITERS, views(2, 40, (), [dead, entry("A", number=2)])), [])

    def test_waiter_who_has_just_begun_sees_the_dead_for_a_lease_itself(self):
        """Its process knows nothing of what others saw."""
        dead = entry("Z", lease=60_000)
        before, late = views(2, 102, [dead], [entry("A")]), [*asked(100, "A"), *waiting("A", 100, 220)]
        for end, found in ((170, False), (200, True)):
            after = views(102, end, [dead], [entry("A")])
            self.assertEqual(bool(check(late, before, after)), found, end)

    def test_occurrence_that_was_reset_runs_again(self):
        reset = [event(2.5, "operator", "resetting", key="pool")]
        self.assertEqual(check(*BAD["done twice"], reset), [])

    def test_two_completions_at_the_same_time_are_found(self):
        first, second = (
            held(name, token, 1, 1.5, occurrence="02", keys="pool") for name, token in (("A", 1), ("B", 2))
        )
        broken = [event(0.9, "operator", "breaking", key="pool")]
        ends = sum((did(2, name, "completing") + did(3, name, "completed") for name in "AB"), [])
        self.assertEqual({found.partition(":")[0] for found in check(first, second, broken, ends)}, {"done twice"})

    def test_claim_may_exceed_a_capacity_that_was_cut(self):
        for error in (None, "ExceedsCapacity", "AlreadyDone", "Unavailable"):
            self.assertEqual(check(asked(1, "A"), did(2, "A", "left", error=error)), [], error)

    def test_later_occurrence_runs_after_an_earlier_one(self):
        later = held("B", 2, 4, 5, occurrence="03", since=3)
        self.assertEqual(check(*BAD["done twice"][:3], later), [])


if __name__ == "__main__":
    unittest.main()
