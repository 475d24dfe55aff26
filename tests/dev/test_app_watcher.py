"""Edits of an app's files are noticed, and those of other files are not."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.app_file import load_app, reload_app, user_modules
from headwater.dev.app_watcher import AppWatcher
from headwater.errors import BadAppError

APP = 'import headwater as hw\nfrom kitchen import cups\n\napp = hw.App("shop")\nSIZE = cups.SIZE\n'


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """The file of an app that imports a package beside it; another module is there, too."""
    (tmp_path / "kitchen").mkdir()
    (tmp_path / "kitchen" / "__init__.py").touch()
    (tmp_path / "kitchen" / "cups.py").write_text("SIZE = 3\n")
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "app.py").write_text(APP)
    path = list(sys.path)
    yield tmp_path / "app.py"
    sys.path[:] = path
    for name in user_modules(tmp_path / "app.py"):
        del sys.modules[name]


@pytest.fixture
def watcher(file: Path) -> Iterator[AppWatcher]:
    """A watcher that was made before the app was loaded, as `headwater dev` does."""
    made = AppWatcher(file)
    load_app(file)
    yield made
    made.close()


def test_a_file_that_is_written_while_it_waits_ends_the_wait(watcher: AppWatcher, file: Path):
    assert not watcher.wait(0.01)
    threading.Timer(0.2, lambda: file.write_text(APP + "\n")).start()
    began = time.monotonic()
    assert watcher.wait(30)
    assert time.monotonic() - began < 20
    assert not watcher.wait(0.01)


def test_a_file_that_an_editor_replaces_is_noticed_again_and_again(watcher: AppWatcher, file: Path):
    for number in range(3):
        (file.parent / "app.py.new").write_text(f"{APP}N = {number}\n")
        os.replace(file.parent / "app.py.new", file)
        assert watcher.wait(10)


def test_a_module_of_a_package_is_noticed_and_its_first_import_is_no_edit(watcher: AppWatcher, file: Path):
    assert not watcher.wait(0.01)
    (file.parent / "kitchen" / "cups.py").write_text("SIZE = 44\n")
    assert watcher.wait(10)


def test_modules_that_the_app_does_not_import_matter_only_if_it_cannot_be_loaded(watcher: AppWatcher, file: Path):
    (file.parent / "unused.py").write_text("N = 1\n")
    (file.parent / "notes.txt").write_text("no module\n")
    assert not watcher.wait(0.1)
    (file.parent / "unused.py").write_text("N = 22\n")
    assert watcher.wait(10, beside=True)


def test_a_reload_has_the_edited_modules_also_within_a_second(file: Path):
    load_app(file)
    for size in range(4, 9):  # the same length within a second: compiled code would count as current
        (file.parent / "kitchen" / "cups.py").write_text(f"SIZE = {size}\n")
        reload_app(file)
        assert size == sys.modules["headwater_app_app"].SIZE


def test_a_reload_that_fails_keeps_the_modules_of_before(file: Path):
    load_app(file)
    before = user_modules(file)
    assert set(before) == {"headwater_app_app", "kitchen", "kitchen.cups"}
    (file.parent / "kitchen" / "cups.py").write_text("SIZE = nothing\n")
    with pytest.raises(BadAppError) as caught:
        reload_app(file)
    assert caught.value.location is not None
    assert user_modules(file) == before


def test_installed_modules_in_the_folder_are_not_of_the_app(file: Path):
    packages = file.parent / ".venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "installed_here.py").touch()
    sys.path.insert(0, str(packages))
    __import__("installed_here")
    try:
        load_app(file)
        assert "installed_here" not in user_modules(file)
    finally:
        del sys.modules["installed_here"]
