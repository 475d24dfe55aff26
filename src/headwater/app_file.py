"""Loads the app that a user's file defines: checks the file, imports it as a module, and finds its `App`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from headwater.app import App
from headwater.errors import BadAppError, HeadwaterError, SourceLocation

__all__ = ["check_app_file", "load_app", "module_name"]


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


def check_app_file(path: str | Path) -> Path:
    """Check that a file exists and is Python, without running it.

    Raises:
        BadAppError: The file is missing or has a syntax error.
    """
    file = Path(path)
    if not file.is_file():
        near = sorted(name.name for name in file.parent.glob("*.py"))[:5]
        detail = f"files in that folder: {', '.join(near)}" if near else "there is no Python file in that folder"
        raise BadAppError(f"no file {str(path)!r}", detail=detail, fix="headwater run app.py", path=str(path))
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
        raise BadAppError(f"{file} is not a Python file", fix="headwater run app.py", path=str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Python resolves type hints of the user's classes there
    sys.path.insert(0, str(file.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except HeadwaterError:
        raise
    except Exception as error:
        raise _load_error(file, error) from error
    return module


def _load_error(file: Path, error: Exception) -> BadAppError:
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        location = SourceLocation.at(error.filename or str(file), error.lineno or 1, line)
        return BadAppError(f"{file} has a syntax error: {error.msg}", location=location, path=str(file))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file.absolute())]
    location = SourceLocation(str(file), 1)
    if frames:  # the user's line, even if the error was raised in a library
        location = SourceLocation.at(frames[-1].filename, frames[-1].lineno or 1, frames[-1].line or "")
    what = f"{file} cannot be loaded: {type(error).__name__}: {error}".rstrip(": ")
    return BadAppError(what, fix=f"python {file}", location=location, path=str(file))
