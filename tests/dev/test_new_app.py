"""A new app: its folder, its files, and its own test."""

from __future__ import annotations

import runpy
import sys
import tomllib
from pathlib import Path

import pytest

from headwater.app_file import load_app
from headwater.cli import main
from headwater.dev.new_app import create_app
from headwater.errors import BadNameError, RefusedError
from headwater.profiles import read_profile


def test_a_new_app_has_an_event_type_a_stream_and_a_view_in_few_lines(tmp_path: Path):
    create_app(tmp_path / "shop")
    app = load_app(tmp_path / "shop" / "app.py")
    assert (app.name, list(app.topics), list(app.pipelines)) == ("shop", ["orders"], ["large_orders", "revenue"])
    text = (tmp_path / "shop" / "app.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 25


def test_a_new_app_is_a_python_project_that_depends_on_headwater(tmp_path: Path):
    create_app(tmp_path / "my-shop")
    text = (tmp_path / "my-shop" / "pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["name"] == "my-shop"
    assert tomllib.loads(text)["project"]["dependencies"] == ["headwater"]
    profile = "\n".join(line.removeprefix("# ") for line in text.splitlines() if not line.startswith("# `"))
    (tmp_path / "my-shop" / "pyproject.toml").write_text(profile)
    assert str(read_profile("prod", tmp_path / "my-shop").spark) == "spark://master:7077"


@pytest.mark.spark
def test_the_test_of_a_new_app_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    create_app(tmp_path / "shop")
    monkeypatch.syspath_prepend(tmp_path / "shop")
    monkeypatch.delitem(sys.modules, "app", raising=False)
    tests = runpy.run_path(str(tmp_path / "shop" / "tests" / "test_app.py"))
    (name,) = [name for name in tests if name.startswith("test_")]
    tests[name]()
    monkeypatch.delitem(sys.modules, "app")


@pytest.mark.parametrize("name", ["my shop", "1shop", "shop-", "café"])
def test_a_name_that_no_project_can_have_is_refused(tmp_path: Path, name: str):
    with pytest.raises(BadNameError):
        create_app(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_with_files_is_refused_and_an_empty_one_is_filled(tmp_path: Path):
    taken, empty = tmp_path / "taken", tmp_path / "empty"
    taken.mkdir()
    (taken / "notes.txt").touch()
    empty.mkdir()
    with pytest.raises(RefusedError):
        create_app(taken)
    assert [path.name for path in taken.iterdir()] == ["notes.txt"]
    assert len(create_app(empty)) == 5


def test_init_prints_commands_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "shop"]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in ("cd shop", "headwater dev", "headwater send orders", "pytest"))
    assert main(["init", "shop"]) == 4
