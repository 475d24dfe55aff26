"""The social timeline in Pathway, for comparison with ours; needs a Python environment with Pathway.

    python benchmarks/pathway_timeline.py EVENTS.npz

Prints the number of rows of new posts, and the CPU seconds from the first post to the last row.
"""

from __future__ import annotations

import json
import sys
import threading
from time import process_time, sleep

import numpy as np
import pathway as pw  # type: ignore[import-not-found]

EVENTS = np.load(sys.argv[1])
LOADED = threading.Event()
MARKS: dict[str, float] = {}
COUNTED = [0]


def wait_until_idle() -> None:
    """Wait until Pathway's own threads are idle."""
    used = 0.0
    while process_time() - used > 0.05:
        used = process_time()
        sleep(1)


class Follow(pw.Schema):  # type: ignore[misc]
    """Who follows whom."""

    follower: int = pw.column_definition(primary_key=True)
    followee: int = pw.column_definition(primary_key=True)


class Post(pw.Schema):  # type: ignore[misc]
    """A post and its author."""

    post_id: int = pw.column_definition(primary_key=True)
    author: int
    words: str


class Follows(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """All follows, at once."""

    def run(self) -> None:
        """Called by Pathway."""
        for follower, followee in enumerate(EVENTS["followees"].tolist()):
            self.next(follower=follower, followee=followee)
        self.commit()
        LOADED.set()


class Posts(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """Old posts at once, then new ones in batches."""

    def run(self) -> None:
        """Called by Pathway."""
        LOADED.wait()
        old = EVENTS["old"].tolist()
        self._send(0, old)
        wait_until_idle()
        MARKS["begun"], MARKS["old"] = process_time(), COUNTED[-1]
        for number, authors in enumerate(EVENTS["new"].tolist()):
            self._send(len(old) + number * len(authors), authors)

    def _send(self, first: int, authors: list[int]) -> None:
        for number, author in enumerate(authors):
            self.next(post_id=first + number, author=author, words="hello")
        self.commit()


def counted(key: object, row: dict[str, int], time: int, is_addition: bool) -> None:
    """Called by Pathway with the number of rows of the timeline; records it with the time."""
    if is_addition:
        COUNTED.append(row["n"])
        MARKS["ended"] = process_time()


follows = pw.io.python.read(Follows(), schema=Follow, autocommit_duration_ms=None)
posts = pw.io.python.read(Posts(), schema=Post, autocommit_duration_ms=None)
timeline = follows.join(posts, follows.followee == posts.author).select(
    follows.follower, posts.post_id, posts.author, posts.words
)
pw.io.null.write(timeline)
pw.io.subscribe(timeline.reduce(n=pw.reducers.count()), on_change=counted)
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
print(json.dumps({"rows": COUNTED[-1] - MARKS["old"], "cpu": MARKS["ended"] - MARKS["begun"]}))
