"""`headwater queues` and `headwater redrive`: counts, dead letters, and their way back to the queue."""

from __future__ import annotations

import pytest

import headwater as hw


@pytest.fixture
def emails(log: hw.Client) -> hw.OpenQueue:
    """A queue with one waiting message and three dead letters."""
    log.create_queue("emails", "to string, n int", key="to", retry=hw.retry(1))
    queue = log.queue("emails")
    for n in range(3):
        queue.publish({"to": "ada", "n": n}, id=f"m-{n}")
        message = queue.receive(timeout=10)
        try:
            raise ValueError(f"no address {n}")
        except ValueError as error:
            message.nack(str(error), stack="in send")
    queue.publish({"to": "bob", "n": 3})
    return queue


def test_counts_are_shown_per_group(call, emails, log):
    log.create_queue("orders", groups=["mail", "stock"])
    log.queue("orders").publish({})
    rows = call("queues", "--json").rows
    assert [(row["queue"], row["group"], row["waiting"], row["dead"]) for row in rows] == [
        ("emails", "", 1, 3),
        ("orders", "mail", 1, 0),
        ("orders", "stock", 1, 0),
    ]
    assert [row["group"] for row in call("queues", "orders", "--group", "stock", "--json").rows] == ["stock"]


def test_without_queues_it_says_how_they_come(call, log):
    done = call("queues")
    assert done.code == 0
    assert "headwater run" in done.err


def test_a_queue_that_does_not_exist_is_an_error(call, emails):
    done = call("queues", "email", "--json")
    assert done.code == 2
    assert done.problem["code"] == "UNKNOWN_QUEUE"


def test_dead_letters_are_shown_with_their_history(call, emails):
    rows = call("queues", "emails", "--dead", "--json").rows
    assert [(row["id"], row["why"], row["value"]["n"]) for row in rows] == [(f"m-{n}", "failed", n) for n in range(3)]
    assert rows[0]["history"][0]["why"] == "no address 0"
    assert rows[0]["history"][0]["stack"] == "in send"
    shown = call("queues", "emails", "--dead", "-n", "2")
    assert "no address 1" in shown.out
    assert "no address 2" not in shown.out
    assert "3 dead letters" in shown.err


def numbers(emails: hw.OpenQueue) -> list[int]:
    return [letter.number for letter in emails.dead_letters()]


def test_one_letter_goes_back_after_an_edit(call, emails):
    number = numbers(emails)[1]
    done = call("redrive", "emails", "--dead", str(number), "--edit", "to=carol", "--edit", "n=7", "--json")
    assert done.rows == [{"queue": "emails", "retried": 1}]
    found = {message.value["n"]: message for message in (emails.receive(10), emails.receive(10))}
    assert (found[7].value["to"], found[7].key, found[7].id) == ("carol", "carol", "m-1")
    assert len(numbers(emails)) == 2


def test_a_dry_run_shows_the_edit_and_changes_nothing(call, emails):
    rows = call("redrive", "emails", "--all", "--edit", "to=carol", "--dry-run", "--json").rows
    assert [row["value"] for row in rows] == [{"to": "carol", "n": n} for n in range(3)]
    assert len(numbers(emails)) == 3


def test_an_edit_that_does_not_fit_puts_nothing_back(call, emails):
    done = call("redrive", "emails", "--all", "--edit", 'n="many"', "--json")
    assert done.code == 2
    assert done.problem["code"] == "BAD_EVENT"
    assert len(numbers(emails)) == 3


def test_all_go_back_at_a_rate(call, emails):
    assert call("redrive", "emails", "--all", "--rate", "100/s", "--json").rows[0]["retried"] == 3
    assert numbers(emails) == []
    assert sorted(emails.receive(10).value["n"] for _ in range(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "words",
    [
        ["emails"],
        ["emails", "--all", "--dead", "1"],
        ["emails", "--dead", "999"],
        ["emails", "--all", "--rate", "fast"],
        ["emails", "--all", "--edit", "nothing"],
    ],
)
def test_wrong_usage_changes_nothing(call, emails, words):
    assert call("redrive", *words).code == 2
    assert len(numbers(emails)) == 3
