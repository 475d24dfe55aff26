"""What the display of `headwater run` makes of the files in a data folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.cli.run.status import StatusReader
from headwater.store.status import EngineStatus, write_engine_status


def reader(folder: Path) -> StatusReader:
    """A reader that does not come to the views."""
    return StatusReader(lambda: pytest.fail("the engine does not run"), folder, ["revenue"])


def test_what_a_killed_engine_has_left_says_nothing_about_the_next_one(tmp_path: Path):
    write_engine_status(tmp_path, EngineStatus("running", since=0, pid=2**22 + 1))  # above the largest process id
    assert reader(tmp_path).read().engine == "starting"


def test_a_data_folder_that_was_removed_stays_broken_until_it_is_back(tmp_path: Path):
    folder, away = tmp_path / "data", tmp_path / "away"
    folder.mkdir()
    write_engine_status(folder, EngineStatus("starting", since=0, pid=os.getpid()))
    found = reader(folder)
    folder.rename(away)
    write_engine_status(folder, EngineStatus("running", since=0, pid=os.getpid()))
    assert not folder.exists()
    assert "is gone" in found.read().broken
    folder.mkdir()  # by another program
    assert "is gone" in found.read().broken
    folder.rmdir()
    away.rename(folder)
    assert (found.read().broken, found.read().engine) == ("", "starting")
