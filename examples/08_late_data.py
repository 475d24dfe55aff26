"""Late data: the log determines which events are late, and each view has a policy: keep, drop or correct."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

app = hw.App("meters")
app.topic("power", "house string, watts int, at timestamp", key="house", time="at", lateness="2 minutes")


def by_minute(power: DataFrame) -> DataFrame:
    """Sum of all houses, minute by minute."""
    return power.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.sum("watts").alias("watts"))


app.view("kept", key="minute")(by_minute)  # late="keep" is the default
app.view("dropped", key="minute", late="drop")(by_minute)
app.view("corrected", key="minute", late=hw.correct(for_="10 minutes"))(by_minute)

START = datetime(2026, 1, 1, tzinfo=UTC)
#         minute of the reading, watts; a reading is late if an earlier one is more than two minutes newer
READINGS = [(0, 5), (1, 6), (3, 7), (2, 8), (6, 9), (1, 100), (4, 10), (20, 11), (0, 1000), (21, 12)]

if __name__ == "__main__":
    with run(app, now=START) as world:
        for minute, watts in READINGS:
            at = START + timedelta(minutes=minute)
            if at > world.clock.now():
                world.clock.advance(at - world.clock.now())  # readings arrive when they are made, stragglers later
            world.send("power", {"house": "h-1", "watts": watts, "at": at})
        world.settle()
        for view in app.pipelines:
            found = {f"{row['minute']['start']:%H:%M}": row["watts"] for row in world.rows(view)}
            print(f"{view}: {found}")
            print(f"{view}: {world.counts(view)}")
        for late in world.client.view("hw_late").rows(where="pipeline = 'kept'"):
            print(f"kept aside: {late['value']} ({late['reason']})")
