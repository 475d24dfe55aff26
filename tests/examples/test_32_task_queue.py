"""Example 32: each mail is sent once, the urgent one first, after as many attempts as its line was busy."""

from __future__ import annotations


def test_every_mail_has_the_attempts_that_its_line_asks_for(printed):
    lines = printed("32_task_queue.py")
    assert lines[0] == "again: duplicate True"
    assert [line for line in lines if line.startswith("sent")] == [
        "sent password to ada@example.com, attempt 1",  # the higher priority
        "sent newsletter to ada@example.com, attempt 1",
        "sent welcome to bob@example.com, attempt 3",  # busy twice
        "sent reminder to dan@example.com, attempt 1",
    ]


def test_rests_double_and_all_messages_are_accounted_for(printed):
    counts = [line for line in printed("32_task_queue.py") if line.startswith("after")]
    assert counts == [
        "after 0 seconds: acked 2, delayed 2, dead 1",
        "after 2 seconds: acked 2, delayed 2, dead 1",  # the second attempt, after 2 s, fails too
        "after 4 seconds: acked 3, delayed 1, dead 1",  # the third comes 4 s later
        "after 1 hour: acked 4, delayed 0, dead 1",
    ]
