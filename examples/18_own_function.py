"""User functions with keyed state: a plain Python function per key, and a vectorised function for all keys."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

import headwater as hw
from headwater.testing import run

app = hw.App("sensors")
app.topic("readings", "sensor string, celsius double, at timestamp", key="sensor", time="at")


@dataclass
class Seen:
    """The state of a sensor."""

    last: float
    rising: int


def climbing(sensor, readings, seen):  # type: ignore[no-untyped-def]
    """Report a sensor whose readings have risen three times in a row."""
    rows = []
    for reading in readings:
        rose = seen is not None and reading["celsius"] > seen.last
        seen = Seen(reading["celsius"], seen.rising + 1 if rose else 0)
        if seen.rising == 3:
            rows.append({"sensor": sensor, "celsius": seen.last, "at": reading["at"]})
    return seen, rows


@app.stream
def alarms(readings: DataFrame) -> DataFrame:
    """Sensors with three rising readings in a row."""
    columns = "sensor string, celsius double, at timestamp"
    return hw.stateful(readings, by="sensor", state=Seen, fn=climbing, returns=columns, expire="1 hour")


def extremes(events, at, states, keys):  # type: ignore[no-untyped-def]
    """The highest and lowest reading of each sensor, for all sensors of a batch at once."""
    celsius = events["celsius"].to_numpy()
    new = states["n"] == 0
    states["low"][new], states["high"][new] = np.inf, -np.inf
    np.minimum.at(states["low"], at, celsius)
    np.maximum.at(states["high"], at, celsius)
    np.add.at(states["n"], at, 1)
    return keys.append_column("low", pa.array(states["low"])).append_column("high", pa.array(states["high"]))


@app.view(key="sensor")
def ranges(readings: DataFrame) -> DataFrame:
    """The lowest and highest reading of each sensor."""
    state, columns = "n bigint, low double, high double", "sensor string, low double, high double"
    return hw.stateful(readings, by="sensor", state=state, fn=extremes, returns=columns)


READINGS = [("attic", 20.0), ("attic", 21.0), ("cellar", 11.0), ("attic", 22.5), ("attic", 23.0)]

if __name__ == "__main__":
    with run(app, now="2026-01-01T12:00:00Z") as world:
        for n, (sensor, celsius) in enumerate(READINGS):
            world.send("readings", {"sensor": sensor, "celsius": celsius, "at": f"2026-01-01T11:59:0{n}Z"})
        world.settle()
        print("alarms:", [tuple((event.value or {}).values())[:2] for event in world.client.read("alarms")])
        print("ranges:", [tuple(row.values()) for row in world.rows("ranges")])
