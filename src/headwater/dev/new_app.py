"""Makes the folder of a new app: a small app, a test of it, and the files of a Python project."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Final

from headwater.errors import BadNameError, RefusedError

__all__ = ["create_app"]

# The suffix keeps tools from taking a template for a program.
_TEMPLATES: Final = Path(__file__).with_name("template")
_FILES: Final = {
    "app.py": "app.py.template",
    "tests/test_app.py": "test_app.py.template",
    "pyproject.toml": "pyproject.toml.template",
    "README.md": "readme.md.template",
    ".gitignore": "gitignore.template",
}
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]|[A-Za-z]")


def create_app(folder: Path) -> list[Path]:
    """Create the folder of an app that is named after it; returns the files.

    Raises:
        BadNameError: The name of the folder cannot be the name of a Python project.
        RefusedError: The folder is not empty.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp(), "shop")
        >>> [path.relative_to(folder).as_posix() for path in create_app(folder)]
        ['app.py', 'tests/test_app.py', 'pyproject.toml', 'README.md', '.gitignore']
    """
    name = folder.absolute().name
    if not _NAME.fullmatch(name):
        what = f"{name!r} cannot be the name of an app"
        detail = "letters, digits, - and _, and a letter at the front"
        raise BadNameError(what, detail=detail, fix="headwater init shop", name=name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = f"{folder} exists and is not empty"
        raise RefusedError(what, fix=f"headwater init {name}-2", folder=str(folder))
    created = []
    for path, template in _FILES.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template((_TEMPLATES / template).read_text("utf-8")).substitute(name=name), "utf-8")
        created.append(file)
    return created
