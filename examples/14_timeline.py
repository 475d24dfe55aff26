"""The social timeline: a join of two tables that both change; an unfollow removes the posts."""

import headwater as hw
from headwater.testing import run

app = hw.App("social")
app.table("posts", "post_id int, author string, words string", key="post_id")
app.table("follows", "follower string, followee string", key=("follower", "followee"))

app.view(
    "timeline",
    key=("follower", "post_id"),
    sql="""
        select f.follower, p.post_id, p.author, p.words
        from follows f join posts p on p.author = f.followee
    """,
)

app.view("reach", key="author", sql="select author, count(*) readers from timeline group by author")

if __name__ == "__main__":
    with run(app) as world:
        world.send("follows", {"follower": "ada", "followee": "bob"}, {"follower": "eve", "followee": "bob"})
        world.send("posts", {"post_id": 1, "author": "bob", "words": "hello"})
        world.send("posts", {"post_id": 2, "author": "ada", "words": "nobody reads me"})
        world.settle()
        print("timeline:", [tuple(row.values()) for row in world.rows("timeline")])
        print("reach:", [tuple(row.values()) for row in world.rows("reach")])

        world.send("posts", {"post_id": 1, "author": "bob", "words": "hello, all"})  # is edited
        world.delete("follows", key=("eve", "bob"))
        world.send("follows", {"follower": "bob", "followee": "ada"})
        world.settle()
        print("timeline:", [tuple(row.values()) for row in world.rows("timeline")])
        print("reach:", [tuple(row.values()) for row in world.rows("reach")])
