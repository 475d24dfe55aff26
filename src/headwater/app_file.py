"""Loads the app that a user's file defines: checks the file, imports it as a module, and finds its `App`.

`reload_app` loads it again after an edit, with the modules beside it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import linecache
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from headwater.app import App
from headwater.errors import BadAppError, BadTypeError, HeadwaterError, SourceLocation, near_names
from headwater.events.ddl import from_ddl

__all__ = ["check_app_file", "load_app", "module_name", "reload_app", "user_modules"]


def load_app(path: str | Path) -> App:
    """Returns the app that a Python file defines.

    The file is imported as a module, so code under `if __name__ == "__main__"` does not run. Its folder is added to the
    path, so it can import modules beside it.

    Raises:
        BadAppError: The file is missing, cannot be imported, or does not define exactly one app.
    """
    module = _import_file(check_app_file(path))
    apps = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, App)}
    if not apps:
        raise BadAppError(f"{path} defines no app", fix='app = hw.App("shop")', path=str(path))
    if len(apps) > 1:
        names = ", ".join(name for name, _ in apps.values())
        what = f"{path} defines {len(apps)} apps: {names}"
        raise BadAppError(what, detail="a file defines one app", fix="keep one of them", path=str(path))
    return next(iter(apps.values()))[1]


def reload_app(path: str | Path) -> App:
    """Returns the app as the files are now: the user's file and the modules of its folder are imported again.

    If that fails, the modules that were imported before are kept.

    Raises:
        BadAppError: The file is missing, cannot be imported, or does not define exactly one app.
    """
    file = check_app_file(path)
    before = user_modules(file)
    _forget(before)
    try:
        return load_app(file)
    except BaseException:
        _forget(user_modules(file))
        sys.modules.update(before)
        raise


def user_modules(path: str | Path) -> dict[str, ModuleType]:
    """Returns the imported modules of an app by name: its file, and those of its folder, but no installed ones."""
    folder = Path(path).absolute().parent
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name == "__main__" or name.partition(".")[0] == "headwater":
            continue
        if not Path(file).is_relative_to(folder):
            continue
        folders = Path(file).relative_to(folder).parts[:-1]
        if not any(part == "site-packages" or part.startswith(".") for part in folders):
            found[name] = module
    return found


def _forget(modules: Mapping[str, ModuleType]) -> None:
    """Have the next import read the files of modules."""
    for name, module in modules.items():
        sys.modules.pop(name, None)
        # Python takes compiled code for current if the second of the last change and the size are equal.
        with contextlib.suppress(OSError, NotImplementedError):
            Path(importlib.util.cache_from_source(str(module.__file__))).unlink()
    importlib.invalidate_caches()
    linecache.checkcache()  # errors quote lines of these files


def check_app_file(path: str | Path) -> Path:
    """Check that a file exists and is Python, without running it.

    Raises:
        BadAppError: The file is missing or has a syntax error.
    """
    file = Path(path)
    if not file.is_file():
        names = sorted(name.name for name in file.parent.glob("*.py"))
        detail = f"files in that folder: {', '.join(names[:5])}" if names else "there is no Python file in that folder"
        near = near_names(file.name, names, 1) or (names if len(names) == 1 else [])
        fix = str(file.parent / near[0]) if near else "the path of a Python file that defines an app"
        raise BadAppError(f"no file {str(path)!r}", detail=detail, fix=fix, path=str(path))
    try:
        compile(file.read_bytes(), str(file.absolute()), "exec")
    except (SyntaxError, ValueError) as error:
        raise _load_error(file, error) from error
    return file


def module_name(file: Path) -> str:
    """Returns the module name of an app's file; the prefix avoids names of installed modules.

    Example:
        >>> module_name(Path("shop/orders.py"))
        'headwater_app_orders'
    """
    return f"headwater_app_{file.stem}"


def _import_file(file: Path) -> ModuleType:
    name = module_name(file)
    spec = importlib.util.spec_from_file_location(name, file.absolute())
    if spec is None or spec.loader is None:
        raise BadAppError(f"{file} is not a Python file", fix="a file whose name ends in .py", path=str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Python resolves type hints of the user's classes there
    folder = str(file.absolute().parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    try:
        with _types_without_session(file):
            spec.loader.exec_module(module)
    except HeadwaterError:
        raise
    except Exception as error:
        raise _load_error(file, error) from error
    return module


@contextlib.contextmanager
def _types_without_session(file: Path) -> Iterator[None]:
    """Let a file declare functions such as `@F.udf("array<int>")`; Spark parses such a type in a session only."""
    if b"pyspark" not in file.read_bytes():
        yield
        return
    import pyspark.sql.udf  # as the file does
    from pyspark import SparkContext

    udfs: Any = pyspark.sql.udf  # the function that it parses types with is not part of its interface
    parse = udfs._parse_datatype_string

    def parse_type(text: str) -> Any:
        if SparkContext._active_spark_context is not None:
            return parse(text)
        from pyspark.sql.pandas.types import from_arrow_schema

        for form in (f"value {text}", text):  # one type, or the fields of a struct
            with contextlib.suppress(BadTypeError):
                schema = from_arrow_schema(from_ddl(form))
                return schema if form is text else schema["value"].dataType
        return parse(text)  # its error has the line

    udfs._parse_datatype_string = parse_type
    try:
        yield
    finally:
        udfs._parse_datatype_string = parse


def _needs_session(error: Exception) -> bool:
    """Returns whether Spark has raised the error because there is no session; some of its functions only assert it."""
    raised_in = [frame.filename for frame in traceback.extract_tb(error.__traceback__)][-1:]
    asserted = isinstance(error, AssertionError) and any("pyspark" in Path(file).parts for file in raised_in)
    return asserted or "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error)


def _load_error(file: Path, error: Exception) -> BadAppError:
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        location = SourceLocation.at(error.filename or str(file), error.lineno or 1, line)
        return BadAppError(f"{file} has a syntax error: {error.msg}", location=location, path=str(file))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file.absolute())]
    location = SourceLocation(str(file), 1)
    if frames:  # the user's line, even if the error was raised in a library
        location = SourceLocation.at(frames[-1].filename, frames[-1].lineno or 1, frames[-1].line or "")
    if _needs_session(error):
        what = f"{file} uses Spark before a session exists"
        detail = "columns, windows and sessions of Spark need one; a type can be an object, such as IntegerType()"
        fix = "move this line into the function of the pipeline"
        return BadAppError(what, detail=detail, fix=fix, location=location, path=str(file))
    what = f"{file} cannot be loaded: {type(error).__name__}: {error}".rstrip(": ")
    return BadAppError(what, fix=f"headwater plan {shlex.quote(str(file))} --trace", location=location, path=str(file))
