"""Windows: tumbling, sliding and session windows, and sessions whose gap depends on the event."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

app = hw.App("site")
app.topic("pages", "user string, kind string, millis int, at timestamp", key="user", time="at", lateness="1 minute")


@app.view(key="minute")
def rate(pages: DataFrame) -> DataFrame:
    """Tumbling: each page counts in one minute."""
    return pages.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("pages"))


@app.view(key=("span", "kind"))
def speed(pages: DataFrame) -> DataFrame:
    """Hopping: the last five minutes, every minute, so each page counts five times."""
    span = F.window("at", "5 minutes", "1 minute").alias("span")
    found = F.avg("millis").alias("mean"), F.percentile("millis", F.lit(0.9)).alias("p90")
    return pages.groupBy(span, "kind").agg(*found, F.approx_count_distinct("user").alias("users"))


@app.view(key=("visit", "user"))
def visits(pages: DataFrame) -> DataFrame:
    """Session: a visit ends when its user has been idle for ten minutes."""
    visit = F.session_window("at", "10 minutes").alias("visit")
    return pages.groupBy(visit, "user").agg(F.count("*").alias("pages"))


@app.view(key=("visit", "user"))
def patient(pages: DataFrame) -> DataFrame:
    """Session with a gap per row: somebody who watches a film is idle for longer."""
    gap = F.when(F.col("kind") == "film", "40 minutes").otherwise("10 minutes")
    return pages.groupBy(F.session_window("at", gap).alias("visit"), "user").agg(F.count("*").alias("pages"))


EVENTS = [(0, "ada", "text"), (1, "bob", "film"), (3, "ada", "text"), (25, "bob", "text"), (26, "ada", "text")]

if __name__ == "__main__":
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with run(app, now=start) as world:
        for minute, user, kind in EVENTS:
            world.advance(start + timedelta(minutes=minute) - world.clock.now())
            millis = 100 * len(kind) + minute
            world.send("pages", {"user": user, "kind": kind, "millis": millis, "at": world.clock.now()})
        world.advance("2 hours")  # no more events; the event time of idle topics advances, and windows close
        world.settle()
        for view in ("rate", "speed", "visits", "patient"):
            for row in world.rows(view):
                window, *rest = row.values()
                shown = (f"{value:.1f}" if isinstance(value, float) else value for value in rest)
                print(view, f"{window['start']:%H:%M}-{window['end']:%H:%M}", *shown)
