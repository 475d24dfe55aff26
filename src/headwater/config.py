"""Settings: how one is declared, and where its value comes from.

A setting is a name, a default and a help sentence. The caller's value takes precedence, then the environment
variable `HEADWATER_<NAME>`, then the default. The docs page of commands is generated from this table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from headwater.errors import BadSettingError

__all__ = ["ADDRESSES", "COMPACTION_MEMORY", "DATA", "OPEN_FILES", "PORT", "PROFILE", "SETTINGS", "Setting"]


@dataclass(frozen=True)
class Setting:
    """One setting.

    Example:
        >>> Setting("colour", "blue", "The colour of the water.").read()
        'blue'
    """

    name: str
    default: str
    help: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"HEADWATER_{self.name.upper()}"

    def read(self, given: object = None) -> str:
        """Returns the value: what the caller gave, else the environment's, else the default."""
        return str(given) if given not in (None, "") else os.environ.get(self.variable) or self.default

    def number(self, given: object = None) -> int:
        """Returns the value as a number.

        Raises:
            BadSettingError: It is not one.
        """
        value = self.read(given)
        if not value.isdigit():
            what = f"{self.name} is {value!r}, which is not a number"
            raise BadSettingError(what, fix=f"{self.variable}={self.default}", setting=self.name)
        return int(value)


DATA = Setting("data", ".headwater", "The data folder, or the URL of a node such as http://127.0.0.1:8642.")
PORT = Setting("port", "8642", "The port a node listens on.")
OPEN_FILES = Setting(
    "open_files",
    "0",
    "The number of files of the log that a process keeps open; 0 is half of what the operating system allows it.",
)
COMPACTION_MEMORY = Setting(
    "compaction_memory",
    "256 MB",
    "The memory for keys while a partition is compacted, about 50 bytes a key; more keys take several passes.",
)
SPARK_CORES = Setting("spark_cores", "0", "The number of cores that Spark uses; 0 uses all cores of the machine.")
SPARK_MEMORY = Setting("spark_memory", "1g", "The maximum heap of Spark's JVM.")
BATCH_SIZE = Setting(
    "batch_size",
    "",
    "The limit of the bytes of events in a batch, such as 32 MB; without one, 3/32 of the heap of Spark's JVM.",
)
STATE_MEMORY = Setting(
    "state_memory",
    "256",
    "The limit of the caches of Spark's state stores, in megabytes; all stores of a process share it.",
)
JAVA_PATIENCE = Setting(
    "java_patience", "60", "Seconds without an answer from Java after which the engine is restarted."
)
CLASS_ARCHIVE = Setting(
    "class_archive",
    "on",
    "Whether the first start of Spark makes an archive of Java's classes, with which later starts are faster; or off.",
)
PROFILE = Setting("profile", "embedded", "The profile, which names the addresses of log, store, queues and Spark.")
LOG = Setting("log", "", "The log of the profile: a folder, or kafka://host:port,host:port.")
STORE = Setting("store", "", "The store of the profile: postgresql://…; without one, SQLite in the data folder.")
QUEUES = Setting("queues", "", "The queues of the profile: amqp://…; without one, SQLite in the data folder.")
SPARK = Setting("spark", "local[*]", "Spark's master: local[*], spark://host:port, k8s://… or yarn.")
CHECKPOINTS = Setting(
    "checkpoints",
    "",
    "A folder or URL for checkpoints that driver and workers access; without one, the data folder.",
)
JARS = Setting(
    "jars", "", "A folder with the jars of Spark's Kafka connector, for real-time mode; downloaded if not set."
)
REALTIME_PARTITIONS = Setting(
    "realtime_partitions", "1", "The number of state partitions of a real-time pipeline; fixed at its first run."
)
MIN_FAILURES = Setting(
    "min_failures",
    "20",
    "A pipeline stops if at least this many of its latest events fail, and too large a share of them.",
)
FAILURE_PERCENT = Setting(
    "failure_percent",
    "50",
    "The share of its latest events that may fail before a pipeline stops, in percent; 100 never stops it.",
)
FAILURE_WINDOW = Setting("failure_window", "1000", "The number of latest events that these two settings look at.")
LATE_RETENTION = Setting(
    "late_retention", "30 days", "How long late events stay in hw_late after the batch that found them; or forever."
)
QUARANTINE_RETENTION = Setting(
    "quarantine_retention",
    "30 days",
    "How long quarantined events stay in hw_quarantine after the batch that found them; or forever.",
)
LEDGER_RETENTION = Setting(
    "ledger_retention", "30 days", "How long batches of a replaced version of a view stay in hw_batches; or forever."
)
FAILURES = (MIN_FAILURES, FAILURE_PERCENT, FAILURE_WINDOW)
ADDRESSES = (LOG, STORE, QUEUES, SPARK, CHECKPOINTS)
SETTINGS = (
    DATA,
    PORT,
    OPEN_FILES,
    COMPACTION_MEMORY,
    SPARK_CORES,
    SPARK_MEMORY,
    BATCH_SIZE,
    STATE_MEMORY,
    JAVA_PATIENCE,
    CLASS_ARCHIVE,
    REALTIME_PARTITIONS,
    JARS,
    *FAILURES,
    LATE_RETENTION,
    QUARANTINE_RETENTION,
    LEDGER_RETENTION,
    PROFILE,
    *ADDRESSES,
)
