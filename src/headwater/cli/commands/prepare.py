"""`headwater prepare`: let Spark start faster from now on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from headwater.cli.options import DEFAULTS, Options
from headwater.cli.output import Output
from headwater.cli.words import bytes_text
from headwater.errors import EngineFailedError

__all__ = ["prepare"]

_FOR: Final = "5s"
_NEEDED: Final = "org/apache/spark/sql/execution/streaming/"


def prepare(*, options: Options = DEFAULTS) -> int:
    """Let Spark start faster from now on.

    To be run once for an environment; it takes about a minute. Runs the demo for a moment to see which classes of Java
    Spark needs, and lets Java write them down as it has them in memory, into the environment that Headwater is
    installed in. Nothing needs it, and nothing else changes. Run it again when Java or Spark was replaced.

    Args:
        options: Options of every command.
    """
    from headwater.engine.spark.archive import room_for_archive, write_archive
    from headwater.engine.spark.java import find_java, spark_jars

    output, java, jars = Output(options), find_java(), spark_jars()
    room_for_archive(java, jars)  # rather now than after a minute
    with tempfile.TemporaryDirectory(prefix="headwater-prepare-") as scratch:
        classes = Path(scratch, "classes")
        output.note(f"running the demo for {_FOR}, to see what Spark loads ...")
        _run_demo(Path(scratch), classes)
        output.note("writing it down ...")
        archive = write_archive(java, jars, classes)
    output.note(f"Spark starts from {archive} ({bytes_text(archive.stat().st_size)})")
    return 0


def _run_demo(folder: Path, classes: Path) -> None:
    """In a folder and with settings of its own: no profile of the user's may lead it to servers of theirs."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    told = environment.get("JDK_JAVA_OPTIONS", "")
    environment["JDK_JAVA_OPTIONS"] = f'{told} -XX:DumpLoadedClassList="{classes}"'.strip()
    program = "import sys; from headwater.cli.entry import main; sys.exit(main())"
    words = ["demo", "--for", _FOR, "--rate", "100", "--port", "0", "--data", str(folder / "data")]
    command = [sys.executable, "-P", "-c", program, *words]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
    # Whether the demo found a fault is not the question here.
    if not classes.is_file() or _NEEDED not in classes.read_text():
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise EngineFailedError(
            "the demo did not come to its first batch",
            detail="\n".join(said[-3:]) or None,
            fix="headwater demo --for 15s",
        )
