"""Device clocks: event time is corrected by two timestamps of the device and the arrival time."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

app = hw.App("greenhouse")
app.topic(
    "readings",
    "device string, celsius double, at timestamp, sent_at timestamp",
    key="device",
    time=hw.device_clock("at", sent="sent_at"),
    lateness="1 minute",
)


@app.view(key="minute")
def warmth(readings: DataFrame) -> DataFrame:
    """Mean of all devices by minute; `occurred_at` is the corrected time, `at` the time of the device."""
    minute = F.window("occurred_at", "1 minute").alias("minute")
    return readings.groupBy(minute).agg(F.avg("celsius").alias("celsius"), F.count("*").alias("readings"))


START = datetime(2026, 1, 1, tzinfo=UTC)
WRONG_BY = {"right": timedelta(0), "slow": timedelta(hours=-2), "fast": timedelta(days=365)}

if __name__ == "__main__":
    with run(app, now=START) as world:
        for number in range(12):
            device = list(WRONG_BY)[number % 3]
            happened = world.clock.now()
            world.clock.advance("10 seconds")  # a reading waits ten seconds before it is sent
            mine = WRONG_BY[device]
            reading = {"device": device, "celsius": 20.0 + number, "at": happened + mine}
            world.send("readings", reading | {"sent_at": world.clock.now() + mine})
        world.settle()
        for event in world.client.read("readings"):
            claimed = event.value["at"] if event.value else None
            print(f"{event.key}: claims {claimed:%Y-%m-%d %H:%M:%S}, happened {event.occurred_at:%H:%M:%S}")
        for row in world.rows("warmth"):
            print(f"{row['minute']['start']:%H:%M}: {row['celsius']:.2f} from {row['readings']} readings")
