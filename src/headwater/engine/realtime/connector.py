"""Spark's own Kafka source and sink: which jars they are, and how they come into a running session.

Spark resolves them by Ivy, which comes with it, from where its settings say; what Ivy prints goes to spark.log. There
is no connector of Spark 4.3's own version yet; the one of 4.2 runs on it. Each jar is taken alone, without what it
names as its dependencies, because one of those was not published.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from headwater.errors import MissingConnectorError

__all__ = ["JARS", "load_connector"]

JARS: Final = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0": (
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767"
    ),
    "org.apache.kafka:kafka-clients:3.9.2": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "org.apache.commons:commons-pool2:2.13.1": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    "org.scala-lang.modules:scala-parallel-collections_2.13:1.2.0": (
        "4eae6e68cf44e9f709970355590ae981883edf6484608d747376a56cbb285432"
    ),
}
"""Coordinates and SHA-256 of every jar."""
_MARK: Final = "spark-sql-kafka"
_FIX: Final = "HEADWATER_JARS=/a/folder/with/the/jars"
_loading = threading.Lock()


def load_connector(spark: SparkSession, folder: str | None, tell: Callable[[str], None]) -> None:
    """Load the connector into Spark, for all its sessions and workers; once, by the first who needs it.

    Args:
        spark: Any session.
        folder: Where the jars are as files; fetched, if left out.
        tell: Told what takes time.

    Raises:
        MissingConnectorError: The jars are not to be had, or are not the ones in `JARS`.
    """
    with _loading:
        if any(_MARK in row[0] for row in spark.sql("LIST JARS").collect()):
            return
        if not folder:
            tell("fetching Spark's Kafka connector: five jars, once for this machine")
        for path in _in(folder) if folder else _fetched(spark):
            _add(spark, path)


def _add(spark: SparkSession, path: str) -> None:
    """Give a jar to all workers and all of the driver.

    ADD JAR would give it to one thread of the driver: those that take in results of tasks would not know its classes,
    and the first batch would fail when it ends. The loader that Spark itself was loaded by serves all threads.
    """
    jvm = _jvm(spark)
    loader = spark._jsparkSession.sharedState().jarClassLoader().getParent()
    loader.addURL(jvm.java.io.File(path).toURI().toURL())
    spark.sparkContext._jsc.addJar(path)


def _in(folder: str) -> list[str]:
    """The jars of the user's own folder; which ones are his affair."""
    found = sorted(str(path.absolute()) for path in Path(folder).expanduser().glob("*.jar"))
    if not any(_MARK in path for path in found):
        what = f"there is no connector in {folder}"
        raise MissingConnectorError(what, detail="\n".join(["it needs:", *JARS]), fix=_FIX, folder=folder)
    return found


def _fetched(spark: SparkSession) -> list[str]:
    return [_compared(_resolved(spark, coordinate), coordinate, known) for coordinate, known in JARS.items()]


def _resolved(spark: SparkSession, coordinate: str) -> str:
    """The file of one jar, wherever Ivy has put it."""
    jvm = _jvm(spark)
    try:
        uri = jvm.java.net.URI(f"ivy://{coordinate}?transitive=false")
        return str(jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(uri).head())
    except Exception as error:  # whatever Java says
        said = next((line for line in str(error).splitlines()[1:] if line.strip()), "").strip()
        what = f"Spark could not fetch {coordinate}"
        raise MissingConnectorError(what, detail=said[:300], fix=_FIX, jar=coordinate) from None


def _compared(path: str, coordinate: str, known: str) -> str:
    found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if found != known:
        what = f"{coordinate} is not the jar that was tried"
        detail = f"its SHA-256 is {found}, not {known}\n{path}"
        raise MissingConnectorError(what, detail=detail, fix=f"remove {path}, or {_FIX}", jar=coordinate)
    return path


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
