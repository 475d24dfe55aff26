"""The user's code on its way to Spark's workers, which have their own machines and nothing of the app's folder."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

from headwater.loading import module_name

__all__ = ["modules_beside", "ship"]


def ship(session: SparkSession, app: Path, scratch: Path) -> None:
    """Let functions of the app's file travel with the tasks that call them, and workers import what stands beside it.

    Files of a package that are no code are sent too. What is installed is not: workers have a Python of their own.

    Args:
        session: The session.
        app: The user's file, which is loaded.
        scratch: A folder of this session.
    """
    packed = scratch / "headwater-modules.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in modules_beside(app):
            archive.write(path, path.relative_to(app.absolute().parent))
    session.sparkContext.addPyFile(str(packed))
    register_pickle_by_value(sys.modules[module_name(app)])  # type: ignore[no-untyped-call]


def modules_beside(app: Path) -> Iterator[Path]:
    """The modules beside an app's file, and all files of the packages beside it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("app.py", "prices.py", "notes.txt"):
        ...     (folder / name).touch()
        >>> [path.name for path in modules_beside(folder / "app.py")]
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
