"""`headwater topics delete` and `headwater groups`: a preview, a confirmation, and what is refused."""

from __future__ import annotations

import pytest


@pytest.fixture
def read(log):
    """The topic `notes` with three notes, of which the group `billing` has read two."""
    log.send_many("notes", [{"text": text} for text in "abc"])
    with log.consumer("notes", group="billing") as consumer:
        consumer.poll(5, most=2)
        consumer.commit()


def test_groups_are_listed_with_what_they_have_not_read(call, log, read):
    (row,) = call("groups", "--json").rows
    assert (row["group"], row["topic"], row["events"], row["members"], row["reader"]) == (
        "billing",
        "notes",
        1,
        0,
        None,
    )


def test_a_deletion_without_a_terminal_needs_yes(call, log, read):
    for command in (("topics", "delete", "notes"), ("groups", "delete", "billing")):
        done = call(*command, "--json")
        assert (done.code, done.problem["code"]) == (4, "NEEDS_CONFIRMATION")
    assert len(list(log.read("notes"))) == 3
    assert log.lag("billing")


def test_a_dry_run_shows_what_would_go(call, log, read):
    (row,) = call("topics", "delete", "notes", "--dry-run", "--json").rows
    assert (row["events"], row["deleted"], row["refused"]) == (3, False, None)
    assert row["groups"] == [{"group": "billing", "topic": "notes", "unread": 1, "members": []}]
    assert row["size"] == log.log.size("notes")
    assert "billing on notes: 1 events unread" in call("groups", "delete", "billing", "--dry-run").out
    assert len(list(log.read("notes"))) == 3


def test_what_was_confirmed_is_deleted(call, log, read):
    assert call("groups", "delete", "billing", "--topic", "notes", "--yes").code == 0
    assert call("groups", "--json").rows == []
    (row,) = call("topics", "delete", "notes", "--yes", "--json").rows
    assert row["deleted"]
    assert "notes" not in [row["topic"] for row in call("topics", "--json").rows]


@pytest.mark.parametrize(
    "command",
    [("topics", "remove", "notes"), ("groups", "remove", "billing"), ("groups", "remove"), ("groups", "delete")],
)
def test_other_words_and_missing_names_are_refused(call, log, read, command):
    done = call(*command, "--json")
    assert (done.code, done.problem["code"]) == (2, "BAD_USAGE")
    assert "delete" in done.problem["fix"]


def test_sizes_are_shown_by_part_with_their_retention(call, log):
    log.create_topic("kept", "text string", retention="1 day")
    rows = {(row["part"], row["name"]): row for row in call("status", "--disk", "--json").rows[0]["parts"]}
    assert rows["topic", "kept"]["kept"] == "1 day"
    assert rows["topic", "notes"]["size"] == log.log.size("notes")
    assert "committed offsets" in call("status", "--disk").out
