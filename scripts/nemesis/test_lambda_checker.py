"""The checker finds the violations of a history, and nothing in a correct one."""

import unittest

from lambda_checker import violations


def wrote(who, token, accepted=True, key="Moe"):
    return {"event": "wrote", "key": key, "token": token, "who": who, "accepted": accepted}


def ended(who, how="returned", **more):
    return {"event": "ended", "who": who, "how": how, **more}


def found(who, token, event="found", key="Moe"):
    return {"event": event, "key": key, "who": who, "token": token}


class CheckerTest(unittest.TestCase):
    def test_good_history_is_good(self):
        history = [
            *(wrote("A", 1), wrote("A", 9, key="Larry"), wrote("A", 1), ended("A"), found("A", None)),
            *(wrote("B", 2), ended("B", "timed-out"), found("B", 2), found("B", None, "probed")),
            *(wrote("C", 3), wrote("B", 2, accepted=False), ended("C", "raised"), found("C", 4)),
            # One attempt dies, the next one has the result, and a late write of the first is refused.
            *(wrote("D", 1, key="e"), ended("D", "crashed", once="e", answer=None)),
            *(wrote("E", 2, key="e"), ended("E", once="e", answer=2), wrote("D", 1, False, key="e")),
            *(ended("F", once="e", answer=2), ended("G", "raised", once="e", answer={"errorType": "LockHeld"})),
            # A release that had no answer in time, as the log said: its lease ends the lock.
            *(wrote("H", 10), ended("H", unreleased=True), found("H", 10), found("H", None, "probed")),
            # A lock that was kept is released at the shutdown, and somebody else has it.
            *({"event": "shut", "kept": [["Moe", 8]]}, {"event": "left", "key": "Moe", "token": 9}),
        ]
        self.assertEqual(violations(history), [])

    def assert_found(self, text, *history):
        self.assertTrue(any(text in violation for violation in violations(history)), violations(history))

    def test_two_at_once_are_found(self):
        self.assert_found("two at once", wrote("A", 1), wrote("B", 2), wrote("A", 1))

    def test_refused_write_counts_as_seen(self):
        self.assert_found("two at once", wrote("B", 2, accepted=False), wrote("A", 1))

    def test_token_of_two_is_found(self):
        self.assert_found("one token for two", wrote("A", 1), wrote("B", 1))

    def test_lock_that_is_left_behind_is_found(self):
        for how in ("returned", "raised"):
            self.assert_found("left behind", wrote("A", 1), ended("A", how), found("A", 1))

    def test_lock_that_outlives_its_margin_is_found(self):
        for end in (ended("A", "timed-out"), ended("A", unreleased=True)):
            self.assert_found("held beyond the margin", wrote("A", 1), end, found("A", 1, "probed"))

    def test_lock_that_a_shutdown_left_behind_is_found(self):
        end = ended("A", "timed-out", **{"shut-down-well": True})
        self.assert_found("left behind", wrote("A", 1), end, found("A", 1))

    def test_lock_that_was_kept_beyond_its_sandbox_is_found(self):
        left = {"event": "left", "key": "Moe", "token": 8}
        self.assert_found("kept beyond its sandbox", {"event": "shut", "kept": [["Moe", 8]]}, left)

    def test_run_after_a_result_is_found(self):
        self.assert_found("ran again", wrote("A", 1, key="e"), ended("A", once="e", answer=1), wrote("B", 2, key="e"))

    def test_second_result_is_found(self):
        self.assert_found("two results", ended("A", once="e", answer=1), ended("B", once="e", answer=2))

    def test_lock_beyond_the_margin_is_found(self):
        self.assert_found("beyond the margin", wrote("A", 1), ended("A", "timed-out"), found("A", 1, "probed"))


if __name__ == "__main__":
    unittest.main()
