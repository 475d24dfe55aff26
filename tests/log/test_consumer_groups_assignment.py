"""Assignment of partitions: one owner each, balanced, few moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headwater.log.consumer_groups import Assignment

STEPS = st.lists(
    st.one_of(
        st.just(("join", 0)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("let go"), st.integers(0, 9)),
    ),
    max_size=25,
)


def settle(group: Assignment) -> None:
    """Every member comes by once."""
    for member in group.members:
        group.hand_over(member)


def shares(group: Assignment) -> list[int]:
    return sorted(len(group.partitions_of(member)) for member in group.members)


def take(group: Assignment, step: tuple[str, int], number: int, partitions: int) -> None:
    what, which = step
    if what == "join":
        group.join(f"m{number}", partitions)
    elif group.members:
        member = group.members[which % len(group.members)]
        if what == "leave":
            group.retain_members([other for other in group.members if other != member], partitions)
        else:
            group.hand_over(member)


@given(st.integers(1, 12), STEPS)
def test_every_partition_has_one_owner_who_is_a_member(partitions, steps):
    group = Assignment(members=[], owners={}, heirs={})
    for number, step in enumerate(steps):
        take(group, step, number, partitions)
        owned = [partition for member in group.members for partition in group.partitions_of(member)]
        assert sorted(owned) == (list(range(partitions)) if group.members else [])
        assert set(group.heirs.values()) <= set(group.members)


@given(st.integers(1, 12), STEPS)
def test_shares_differ_by_one_at_most_once_all_came_by(partitions, steps):
    group = Assignment(members=[], owners={}, heirs={})
    for number, step in enumerate(steps):
        take(group, step, number, partitions)
    settle(group)
    if group.members:
        assert shares(group)[-1] - shares(group)[0] <= 1
        assert group.heirs == {}


@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 7))
def test_no_more_partitions_move_than_must(partitions, members, leaving):
    group = Assignment(members=[], owners={}, heirs={})
    for number in range(members):
        group.join(f"m{number}", partitions)
        settle(group)
    before = dict(group.owners)
    group.join("new", partitions)
    settle(group)
    moved = Counter(group.owners[p] for p in before if group.owners[p] != before[p])
    assert moved == ({"new": partitions // (members + 1)} if partitions // (members + 1) else {})

    before = dict(group.owners)
    gone = group.members[leaving % len(group.members)]
    group.retain_members([member for member in group.members if member != gone], partitions)
    settle(group)
    assert {p for p in before if group.owners[p] != before[p]} == {p for p in before if before[p] == gone}


def test_a_partition_moves_only_when_its_owner_lets_go():
    group = Assignment(members=[], owners={}, heirs={})
    group.join("a", 4)
    group.join("b", 4)
    assert (group.partitions_of("a"), group.partitions_of("b")) == ((0, 1, 2, 3), ())
    assert not group.hand_over("b")
    assert group.hand_over("a")
    assert (group.partitions_of("a"), group.partitions_of("b")) == ((0, 1), (2, 3))


def test_partitions_of_a_member_that_is_gone_move_at_once():
    group = Assignment(members=[], owners={}, heirs={})
    for member in "ab":
        group.join(member, 4)
    assert group.retain_members({"b"}, 4)
    assert group.partitions_of("b") == (0, 1, 2, 3)
    assert not group.retain_members({"b"}, 4)


def test_every_change_of_owners_has_a_new_generation():
    group = Assignment(members=[], owners={}, heirs={})
    seen = [group.generation]
    group.join("a", 2)
    seen.append(group.generation)
    group.join("b", 2)
    seen.append(group.generation)
    group.hand_over("a")
    seen.append(group.generation)
    group.hand_over("a")
    assert sorted(set(seen)) == seen
    assert group.generation == seen[-1]


def test_a_group_without_members_owns_nothing():
    group = Assignment(members=[], owners={}, heirs={})
    group.join("a", 3)
    group.retain_members([], 3)
    assert (group.members, group.owners, group.heirs) == ([], {}, {})


def test_more_members_than_partitions_wait_in_line():
    group = Assignment(members=[], owners={}, heirs={})
    for member in "abc":
        group.join(member, 2)
        settle(group)
    assert shares(group) == [0, 1, 1]
    group.retain_members({"b", "c"}, 2)
    assert shares(group) == [1, 1]
