"""Example 14: the timeline, and the view behind it, are DuckDB's join of what is followed and posted now."""

from __future__ import annotations

import ast
import random

import pytest

from headwater.testing import run
from tests.examples.on_spark import duck, ran

pytestmark = pytest.mark.spark

NAME = "14_timeline.py"
JOINED = """
    select follower, post_id, author, words from follows join posts on author = followee order by all
"""
REACH = f"select author, count(*) from ({JOINED}) group by author order by all"
FOLLOWS = [{"follower": "ada", "followee": "bob"}, {"follower": "eve", "followee": "bob"}]
POSTS = [{"post_id": 1, "author": "bob", "words": "hello"}, {"post_id": 2, "author": "ada", "words": "nobody reads me"}]


def test_posts_reach_those_who_follow():
    found = [ast.literal_eval(line.split(": ", 1)[1]) for line in ran(NAME).lines[:2]]
    given = {"follows": FOLLOWS, "posts": POSTS}
    assert found == [duck(JOINED, **given), duck(REACH, **given)]


def test_edits_and_unfollowing_reach_the_timeline_too():
    found = [ast.literal_eval(line.split(": ", 1)[1]) for line in ran(NAME).lines[2:]]
    follows = [FOLLOWS[0], {"follower": "bob", "followee": "ada"}]
    given = {"follows": follows, "posts": [POSTS[0] | {"words": "hello, all"}, POSTS[1]]}
    assert found == [duck(JOINED, **given), duck(REACH, **given)]


def test_random_changes_of_both_sides_leave_the_rows_of_the_join():
    chance, people = random.Random(14), ["ada", "bob", "eve", "kim"]
    follows, posts = {}, {}
    with run(ran(NAME).app) as world:
        for batch in range(4):
            for _ in range(20):
                pair = (chance.choice(people), chance.choice(people))
                follows[pair] = {"follower": pair[0], "followee": pair[1]}
                world.client.send("follows", follows[pair])
                number = chance.randrange(12)  # a post may be edited, and change hands
                posts[number] = {"post_id": number, "author": chance.choice(people), "words": f"in {batch}"}
                world.client.send("posts", posts[number])
                if chance.random() < 0.4:
                    gone = chance.choice(list(follows))
                    world.client.delete("follows", key=gone)
                    del follows[gone]
                if chance.random() < 0.3:
                    world.client.delete("posts", key=number)
                    del posts[number]
            world.settle()
            given = {"follows": list(follows.values()), "posts": list(posts.values())}
            assert {tuple(row.values()) for row in world.rows("timeline")} == set(duck(JOINED, **given))
            assert {tuple(row.values()) for row in world.rows("reach")} == set(duck(REACH, **given))
