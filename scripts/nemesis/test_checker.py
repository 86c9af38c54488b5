"""The checker finds the violations of a history, and nothing in a correct one."""

import unittest

from checker import violations


def event(at, who, kind, **members):
    return {"at": at, "who": who, "event": kind, "key": "Moe", **members}


def held(who, token, start, end, asked=None, data=None):
    """A grant, and belief from `start` to `end`."""
    return [
        event(start, who, "granted", token=token, asked=start - 1 if asked is None else asked, data=data),
        event(start, who, "believed", token=token),
        event(end, who, "believed", token=token),
    ]


def check(*histories):
    return violations(sorted(sum(histories, []), key=lambda event: event["at"]))


class CheckerTest(unittest.TestCase):
    def test_good_history_is_good(self):
        one = [
            *held("A", 1, 100, 200),
            event(120, "A", "sending", token=1, data="1"),
            event(130, "A", "acked", token=1, data="1"),
            event(201, "A", "releasing", token=1, delete=False),
        ]
        self.assertEqual(check(one, held("B", 2, 210, 300, data="1")), [])

    def test_two_at_once_are_found(self):
        self.assertIn("two at once", check(held("A", 1, 100, 200), held("B", 2, 150, 300))[0])

    def test_third_within_a_long_one_is_found(self):
        found = check(held("A", 1, 100, 900), held("B", 2, 950, 960), held("C", 3, 800, 850))
        self.assertTrue(any("two at once" in violation and "C with" in violation for violation in found), found)

    def test_break_excuses_those_that_it_broke(self):
        broken = [event(140, "operator", "breaking")]
        self.assertEqual(check(held("A", 1, 100, 200), held("B", 2, 150, 300), broken), [])
        before = [event(90, "operator", "breaking")]
        self.assertEqual(len(check(held("A", 1, 100, 200), held("B", 2, 150, 300), before)), 1)

    def test_token_that_falls_is_found(self):
        found = check(held("A", 5, 100, 200), held("B", 4, 300, 400, asked=250))
        self.assertTrue(any("the token fell" in violation for violation in found), found)

    def test_token_that_is_granted_twice_is_found(self):
        found = check(held("A", 5, 100, 200), held("B", 5, 300, 400))
        self.assertTrue(any("granted twice" in violation for violation in found), found)

    def test_payload_that_was_rolled_back_is_found(self):
        one = held("A", 1, 100, 200)
        for at, data in ((120, "1"), (140, "2")):
            one += [event(at, "A", "sending", token=1, data=data), event(at + 1, "A", "acked", token=1, data=data)]
        found = check(one, held("B", 2, 210, 300, data="1"))
        self.assertTrue(any("a payload was lost" in violation for violation in found), found)

    def test_payload_without_an_answer_may_be_there_or_not(self):
        one = [*held("A", 1, 100, 200), event(120, "A", "sending", token=1, data="1")]
        self.assertEqual(check(one, held("B", 2, 210, 300, data="1")), [])
        self.assertEqual(check(one, held("B", 2, 210, 300)), [])

    def test_payload_out_of_nowhere_is_found(self):
        found = check(held("A", 1, 100, 200), held("B", 2, 210, 300, data="7"))
        self.assertTrue(any("a payload was lost" in violation for violation in found), found)

    def test_delete_takes_the_payload(self):
        one = held("A", 1, 100, 200)
        one += [event(120, "A", "sending", token=1, data="1"), event(121, "A", "acked", token=1, data="1")]
        one += [event(205, "A", "releasing", token=1, delete=True)]
        self.assertEqual(check(one, held("B", 2, 210, 300)), [])

    def test_belief_without_a_grant_is_found(self):
        self.assertEqual(len(check([event(1, "A", "believed", token=9)])), 1)

    def test_late_write_that_was_accepted_is_found(self):
        writes = [event(1, "s", "wrote", token=2, writer="x"), event(2, "s", "wrote", token=1, writer="y")]
        self.assertIn("a late write", check(writes)[0])

    def test_shared_token_is_found(self):
        writes = [event(1, "s", "wrote", token=2, writer="x"), event(2, "s", "wrote", token=2, writer="y")]
        self.assertIn("shared", check(writes)[0])


if __name__ == "__main__":
    unittest.main()
