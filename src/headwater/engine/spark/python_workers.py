"""Spark's Python workers: the app's modules are shipped to them, and their garbage collector is tuned.

Workers may run on other machines, which do not have the app's folder.
"""

from __future__ import annotations

import gc
import hashlib
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

_ARCHIVE = "headwater-modules"
_VERSION = "HEADWATER_APP_MODULES"
"""An environment variable of Python workers. Spark keeps workers with other variables apart, so that functions which
are made after a change of modules run in processes that have not imported the old ones."""


@cache
def freeze_gc(loaded: str) -> None:
    """Exclude all current objects from later garbage collections; once per set of modules.

    Spark's workers collect garbage after each task (`pyspark.daemon`), and so visit every object of every imported
    module: 20 to 60 ms of CPU, more than a small task itself. Modules live as long as the process, so they need no
    visit. Call it at the end of a task, when all modules are loaded and few other objects exist. Further calls with the
    same argument do nothing, because garbage cycles of later tasks would be excluded, too.

    Args:
        loaded: A name for the set of modules.

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

    Data files of packages are shipped, too. Installed packages are not: workers have their own Python environment. A
    later call ships the modules again if they have changed; functions that are made from then on use the new ones.

    Args:
        session: The session.
        app: The user's file, which must be loaded.
        scratch: The temporary folder of the session.
    """
    context = session.sparkContext
    digest = _digest(app)
    archive_path = scratch / f"{_ARCHIVE}-{digest}.zip"
    if context.environment.get(_VERSION) != digest:
        with zipfile.ZipFile(archive_path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for path in sibling_modules(app):
                archive.write(path, path.relative_to(app.absolute().parent))
        includes = context._python_includes or []
        context._python_includes = [name for name in includes if not name.startswith(_ARCHIVE)]
        context.addPyFile(str(archive_path))
        context.environment[_VERSION] = digest
    register_pickle_by_value(sys.modules[module_name(app)])  # type: ignore[no-untyped-call]


def _digest(app: Path) -> str:
    """Returns a short hash of what is shipped beside the app's file."""
    digest = hashlib.sha256()
    for path in sibling_modules(app):
        content = path.read_bytes()
        digest.update(f"{path}:{len(content)}:".encode() + content)
    return digest.hexdigest()[:16]


def sibling_modules(app: Path) -> Iterator[Path]:
    """Yields the modules beside an app's file, and all files of the packages beside it.

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
