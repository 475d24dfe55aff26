"""The app that a user's file defines: the file is checked, run as a module, and its app is found."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from headwater.app import App
from headwater.errors import BadAppError, HeadwaterError, Place

__all__ = ["checked_file", "load_app", "module_name"]


def load_app(path: str | Path) -> App:
    """The app that a Python file defines.

    The file runs as a module: what stands under `if __name__ == "__main__"` does not. Its folder is on the path, so it
    may import its neighbours.

    Raises:
        BadAppError: The file is missing, does not run, or defines no app, or several.
    """
    module = _imported(checked_file(path))
    apps = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, App)}
    if not apps:
        raise BadAppError(f"{path} defines no app", fix='app = hw.App("shop")', path=str(path))
    if len(apps) > 1:
        names = ", ".join(name for name, _ in apps.values())
        what = f"{path} defines {len(apps)} apps: {names}"
        raise BadAppError(what, detail="one file is one app", fix="keep one of them", path=str(path))
    return next(iter(apps.values()))[1]


def checked_file(path: str | Path) -> Path:
    """A file that may define an app: it is there and it is Python. Nothing of it is run.

    Raises:
        BadAppError: The file is missing or has a syntax error.
    """
    file = Path(path)
    if not file.is_file():
        near = sorted(name.name for name in file.parent.glob("*.py"))[:5]
        detail = f"files here: {', '.join(near)}" if near else "there is no Python file in that folder"
        raise BadAppError(f"no file {str(path)!r}", detail=detail, fix="headwater run app.py", path=str(path))
    try:
        compile(file.read_bytes(), str(file.absolute()), "exec")
    except (SyntaxError, ValueError) as error:
        raise _broken(file, error) from error
    return file


def module_name(file: Path) -> str:
    """The name under which an app's file is a module of this process, and of no other.

    Example:
        >>> module_name(Path("shop/orders.py"))
        'headwater_app_orders'
    """
    return f"headwater_app_{file.stem}"


def _imported(file: Path) -> ModuleType:
    name = module_name(file)
    spec = importlib.util.spec_from_file_location(name, file.absolute())
    if spec is None or spec.loader is None:
        raise BadAppError(f"{file} is not a Python file", fix="headwater run app.py", path=str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints of the user's classes are looked up there
    sys.path.insert(0, str(file.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except HeadwaterError:
        raise
    except Exception as error:
        raise _broken(file, error) from error
    return module


def _broken(file: Path, error: Exception) -> BadAppError:
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        place = Place.near(error.filename or str(file), error.lineno or 1, line)
        return BadAppError(f"{file} has a syntax error: {error.msg}", place=place, path=str(file))
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file.absolute())
    ]
    found = frames[-1] if frames else None
    place = Place.near(found.filename, found.lineno or 1, found.line or "") if found else Place(str(file), 1)
    what = f"{file} cannot be loaded: {kind}: {error}".rstrip(": ")
    return BadAppError(what, fix=f"python {file}", place=place, path=str(file))
