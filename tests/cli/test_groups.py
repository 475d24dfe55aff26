"""`headwater lag` and `headwater reset`: the lag of groups, and resets after a preview."""

from __future__ import annotations

import pytest


@pytest.fixture
def billing(log):
    """The committed offsets of a stopped group that has read 12 of the 30 events of a topic."""
    log.create_topic("payments", "payment_id int, customer int", key="customer", partitions=3)
    log.send_many("payments", [{"payment_id": n, "customer": n} for n in range(30)])
    with log.consumer("payments", group="billing") as consumer:
        consumer.poll(5, most=12)
        consumer.commit()
    return log.log.groups.state("billing", "payments").committed


def ends(log) -> dict[int, int]:
    """Returns the end of each partition, counted by reading it."""
    return {number: sum(1 for _ in log.read("payments", partitions=[number])) for number in range(3)}


def test_lag_is_what_is_left_to_read(call, log, billing):
    (row,) = call("lag", "--over", "0s", "--json").rows
    assert (row["group"], row["topic"], row["members"]) == ("billing", "payments", 0)
    assert row["events"] == sum(ends(log).values()) - sum(billing.values()) == 18
    assert row["behind"] > 0
    assert row["trend"] is None


def test_lag_by_partition_names_offsets_and_owner(call, log, billing):
    with log.consumer("payments", group="billing") as consumer:
        rows = call("lag", "billing", "--partitions", "--json").rows
        assert consumer.assignment == (0, 1, 2)
    assert {row["partition"]: row["committed"] for row in rows} == billing
    assert {row["partition"]: row["end"] for row in rows} == ends(log)
    assert len({row["owner"] for row in rows} - {None}) == 1


def test_a_group_that_catches_up_says_when_it_will_be_done(call, log, billing, monkeypatch):
    with log.consumer("payments", group="billing") as consumer:

        def meanwhile(_: float) -> None:
            consumer.poll(5, most=9)
            consumer.commit()

        monkeypatch.setattr("headwater.cli.commands.groups.time.sleep", meanwhile)
        (row,) = call("lag", "--over", "3s", "--json").rows
    assert (row["events"], row["trend"], row["left"]) == (9, -3.0, 3.0)


def test_a_group_that_has_read_everything_is_there_now(call, log, billing):
    with log.consumer("payments", group="billing") as consumer:
        while consumer.poll(0.1):
            consumer.commit()
    (row,) = call("lag", "--over", "0s", "--json").rows
    assert (row["events"], row["behind"], row["left"]) == (0, 0.0, 0.0)


def test_an_unknown_group_lists_the_known_ones(call, billing):
    done = call("lag", "biling")
    assert done.code == 2
    assert done.err.startswith("error UNKNOWN_GROUP")
    assert "billing" in done.err


@pytest.mark.parametrize("to", ["earliest", "latest", "2", "-10m"])
def test_what_a_dry_run_shows_is_what_a_reset_does(call, log, billing, to):
    shown = call("reset", "billing", "--topic", "payments", "--to", to, "--dry-run", "--json")
    assert shown.code == 0
    assert log.log.groups.state("billing", "payments").committed == billing
    assert {row["partition"]: row["old"] for row in shown.rows} == billing
    done = call("reset", "billing", "--topic", "payments", "--to", to, "--yes", "--json")
    assert done.rows == shown.rows
    after = log.log.groups.state("billing", "payments").committed
    assert after == {row["partition"]: row["new"] for row in shown.rows}
    expected = {"earliest": dict.fromkeys(range(3), 0), "latest": ends(log), "2": dict.fromkeys(range(3), 2)}
    assert after == expected.get(to, dict.fromkeys(range(3), 0))


def test_without_a_terminal_a_reset_needs_yes(call, log, billing):
    done = call("reset", "billing", "--topic", "payments", "--to", "latest")
    assert done.code == 4
    assert done.err.startswith("error NEEDS_CONFIRMATION")
    assert log.log.groups.state("billing", "payments").committed == billing


@pytest.mark.parametrize(("typed", "code"), [(b"billing\n", 0), (b"yes\n", 4), (b"\n", 4)])
def test_on_a_terminal_the_groups_name_is_typed(terminal, log, data, billing, typed, code):
    done = terminal("reset", "billing", "--topic", "payments", "--to", "latest", typed=typed, data=data)
    assert done.code == code
    after = log.log.groups.state("billing", "payments").committed
    assert after == (ends(log) if code == 0 else billing)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["biling", "--topic", "payments", "--to", "latest"], "UNKNOWN_GROUP"),
        (["billing", "--topic", "notes", "--to", "latest"], "UNKNOWN_GROUP"),
        (["billing", "--topic", "paymnts", "--to", "latest"], "UNKNOWN_TOPIC"),
        (["billing", "--topic", "payments", "--to", "999"], "BAD_OFFSET"),
        (["billing", "--topic", "payments", "--to", "noon"], "BAD_TIME"),
    ],
)
def test_a_reset_that_cannot_be_changes_nothing(call, log, billing, words, code):
    done = call("reset", *words, "--yes")
    assert (done.code, done.err.split(":")[0]) == (2, f"error {code}")
    assert log.log.groups.state("billing", "payments").committed == billing
    assert [state.group for state in log.log.groups.states()] == ["billing"]


def test_a_running_group_is_not_moved(call, log, billing):
    with log.consumer("payments", group="billing"):
        done = call("reset", "billing", "--topic", "payments", "--to", "latest", "--yes")
    assert done.code == 4
    assert done.err.startswith("error REFUSED")
    assert log.log.groups.state("billing", "payments").committed == billing


def test_the_group_of_a_pipeline_is_refused_and_the_rebuild_named(call, log, billing):
    log.log.groups.reset("hw.pipeline.revenue", "payments", {0: 3})  # as the engine reports it
    done = call("reset", "hw.pipeline.revenue", "--topic", "payments", "--to", "earliest", "--yes", "--json")
    assert (done.code, done.problem["code"], done.problem["data"]["pipeline"]) == (4, "REFUSED", "revenue")
    assert done.problem["fix"].startswith("stop the app; headwater backfill revenue --data ")
    assert log.log.groups.state("hw.pipeline.revenue", "payments").committed[0] == 3
