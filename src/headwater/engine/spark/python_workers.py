"""Spark's Python workers: shipping the app's modules to them, and garbage collector settings in them.

Workers may run on other machines, which do not have the app's folder.
"""

from __future__ import annotations

import gc
import os
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

from headwater.app_file import module_name

__all__ = ["freeze_gc", "ship_app", "sibling_modules"]


@cache
def freeze_gc(loaded: str) -> None:
    """Exclude all current objects from later garbage collections; once per set of modules.

    Spark's workers collect after each task (`pyspark.daemon`), and so walk through every object of every module that
    was imported: 20 to 60 ms of CPU, more than a small task itself. Modules stay as long as the process does, so
    nothing is lost by not looking at them. It is said at the end of a task, when all is loaded and little else is
    there, and only once: what a task leaves behind in cycles would never be collected otherwise.

    Args:
        loaded: What was loaded, in a word.

    Example:
        >>> before = gc.get_freeze_count()
        >>> freeze_gc("an example")
        >>> gc.get_freeze_count() > before
        True
        >>> gc.unfreeze()
    """
    gc.freeze()


def ship_app(session: SparkSession, app: Path, scratch: Path) -> None:
    """Ship functions of the app's file with the tasks that call them, and the modules beside it to the workers.

    Files of a package that are no code are sent too. What is installed is not: workers have a Python of their own.

    Args:
        session: The session.
        app: The user's file, which is loaded.
        scratch: A folder of this session.
    """
    archive_path = scratch / "headwater-modules.zip"
    with zipfile.ZipFile(archive_path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sibling_modules(app):
            archive.write(path, path.relative_to(app.absolute().parent))
    session.sparkContext.addPyFile(str(archive_path))
    register_pickle_by_value(sys.modules[module_name(app)])  # type: ignore[no-untyped-call]


def sibling_modules(app: Path) -> Iterator[Path]:
    """Returns the modules beside an app's file, and all files of the packages beside it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("app.py", "prices.py", "notes.txt"):
        ...     (folder / name).touch()
        >>> [path.name for path in sibling_modules(folder / "app.py")]
        ['prices.py']
    """
    file = app.absolute()
    for path in sorted(file.parent.iterdir()):
        if not os.access(path, os.R_OK):
            continue
        if path.suffix == ".py" and path != file:
            yield path
        elif os.access(path, os.X_OK) and (path / "__init__.py").is_file():
            files = (each for each in sorted(path.rglob("*")) if each.is_file())
            yield from (each for each in files if each.parent.name != "__pycache__")
