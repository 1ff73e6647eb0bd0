"""Actions that wait for the end of a request."""

import logging

from purgatory.operation.action_queue import DelayedActionQueue


def test_actions_run_in_order_and_what_they_add_waits_for_the_next_call():
    queue = DelayedActionQueue()
    ran = []
    queue.add(lambda: (ran.append(1), queue.add(lambda: ran.append(3))))
    queue.add(lambda: ran.append(2))
    queue.try_complete_actions()
    assert ran == [1, 2]
    queue.try_complete_actions()
    queue.try_complete_actions()
    assert ran == [1, 2, 3]


def test_a_failing_action_is_logged_and_stops_nobody(caplog):
    def fail():
        raise RuntimeError("this action's own")

    queue = DelayedActionQueue()
    ran = []
    queue.add(fail)
    queue.add(lambda: ran.append("next"))
    with caplog.at_level(logging.ERROR):
        queue.try_complete_actions()
    assert ran == ["next"]
    assert [entry.message for entry in caplog.records] == ["a delayed action failed"]
