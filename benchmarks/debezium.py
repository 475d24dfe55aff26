"""The Debezium engine beside our capture: the same table and changes, as JSON, with no log kept.

It runs in a Java process of its own with its defaults, from jars that are downloaded once into the cache folder. Wall
and CPU time are from its first change to its last, so its start of some seconds is not counted.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from benchmarks.measure import say
from headwater.engine.spark.java import find_java
from headwater.errors import HeadwaterError
from headwater.services.kafka import fetch_jars

__all__ = ["DebeziumEngine", "Figures", "find_debezium"]

_VERSION: Final = "3.6.3.Final"
_COORDINATES: Final = tuple(
    f"io.debezium:debezium-{one}:{_VERSION}" for one in ("api", "embedded", "connector-postgres")
)
_PROGRAM: Final = Path(__file__).with_name("DebeziumCapture.java")
_SETTINGS: Final = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "bench",
    "plugin.name": "pgoutput",
    "publication.name": "debezium",
    "publication.autocreate.mode": "filtered",
    "table.include.list": "public.item",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
}


class Figures(NamedTuple):
    """What one run gave: changes, wall and CPU seconds from the first to the last, seconds until the first."""

    changes: int
    wall: float
    cpu: float
    start: float


def find_debezium() -> list[str] | None:
    """Returns the command of the engine; None, after a line that says why, if it cannot be installed here."""
    try:
        java = find_java()
        jars = fetch_jars(f"debezium-{_VERSION}", _COORDINATES, say)
    except HeadwaterError as error:
        say(f"Debezium is not measured: {error.what}")
        return None
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False).stdout
    if "jdk.compiler" not in modules:
        say(f"Debezium is not measured: {java} is no JDK, which compiles {_PROGRAM.name}")
        return None
    return [str(java), "-Xmx2g", "-cp", f"{jars}/*", str(_PROGRAM)]


class DebeziumEngine:
    """An engine that captures the table of the benchmark from one database.

    Args:
        command: The command of `find_debezium`.
        url: The database.
        folder: For its offsets.
        flush: Milliseconds between two writes of the offsets; Debezium's default is a minute.
    """

    def __init__(self, command: list[str], url: str, folder: Path, flush: int = 60_000) -> None:
        place = urlsplit(url)
        folder.mkdir(parents=True, exist_ok=True)
        settings = _SETTINGS | {
            "database.hostname": place.hostname,
            "database.port": place.port,
            "database.user": place.username,
            "database.password": "unused",
            "database.dbname": place.path.strip("/"),
            "slot.name": f"debezium_{place.path.strip('/')}",
            "offset.storage.file.filename": folder / "offsets",
            "offset.flush.interval.ms": flush,
        }
        self._properties = folder / "debezium.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._seen = folder / "seen"
        self._command = command

    def run(self, changes: int) -> Figures:
        """Run it until it has delivered this many changes."""
        command = [*self._command, str(self._properties), str(changes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        count, *seconds = done.stdout.split()
        return Figures(int(count), *map(float, seconds))

    def count_repeats(self, changes: int, kills: int) -> int:
        """Kill it while it delivers a backlog of changes, then let it finish; returns how many changes came again."""
        chance = random.Random(1)
        for _ in range(kills):
            before = self._lines()
            process = self._start(changes)
            goal = before + chance.randint(changes // 20, changes // 6)
            while self._lines() < goal and process.poll() is None:
                time.sleep(0.02)
            process.kill()
            process.wait()
        lines: Counter[str] = Counter()
        process = self._start(changes)
        try:
            while len(lines) < changes and process.poll() is None:
                time.sleep(0.2)
                lines = Counter(self._seen.read_text().splitlines())
        finally:
            process.kill()
            process.wait()
        return sum(lines.values()) - len(lines)

    def _start(self, changes: int) -> subprocess.Popen[bytes]:
        # It never reaches its end, because changes come again.
        command = [*self._command, str(self._properties), str(1_000 * changes), str(self._seen)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _lines(self) -> int:
        return self._seen.read_bytes().count(b"\n") if self._seen.exists() else 0
