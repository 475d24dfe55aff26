"""The archive of Spark's classes: Java writes and uses it, and starts without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwater.engine.spark.class_archive import (
    ClassRecording,
    archive_options,
    main,
    prepare_archive_path,
    write_archive,
)
from headwater.engine.spark.java import class_path, find_java, spark_jars
from headwater.errors import EngineFailedError, NotWritableError
from headwater.memory import child_processes
from headwater.testing.world import get_spark

WANTED = "java/lang/Object id: 1\norg/slf4j/LoggerFactory id: 2\n"


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One jar of Spark's, in an environment of its own."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "jars"
    folder.mkdir()
    for jar in spark_jars().glob("slf4j-api-*.jar"):
        shutil.copy(jar, folder)
    return folder


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    path = tmp_path / "classes"
    path.write_text(WANTED)
    return path


def test_java_takes_what_it_has_written(jars: Path, classes: Path):
    java = find_java()
    assert archive_options(java, jars) == []
    archive = write_archive(java, jars, classes)
    # With "on" Java does not start if it cannot use the archive.
    command = [java, "-Xshare:on", *archive_options(java, jars), "-cp", class_path(jars), "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "sharing" in said.stderr
    assert list(archive.parent.iterdir()) == [archive]


def test_another_jar_is_another_archive_and_takes_the_place_of_the_first(jars: Path, classes: Path):
    java = find_java()
    first = write_archive(java, jars, classes)
    shutil.copy(next(jars.iterdir()), jars / "more.jar")
    assert archive_options(java, jars) == []
    second = write_archive(java, jars, classes)
    assert list(first.parent.iterdir()) == [second]
    assert archive_options(java, jars)


def test_the_archive_is_in_the_cache_folder_if_the_environment_is_read_only(jars: Path, classes: Path, tmp_path: Path):
    Path(sys.prefix).write_text("no folder")
    archive = write_archive(find_java(), jars, classes)
    assert archive.parent == tmp_path / "cache" / "headwater"
    assert str(archive) in archive_options(find_java(), jars)[0]


def test_folders_of_somebody_else_are_told(jars: Path, classes: Path, tmp_path: Path):
    Path(sys.prefix).write_text("no folder")
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(NotWritableError):
        write_archive(find_java(), jars, classes)
    assert ClassRecording.begin(find_java(), jars) is None


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return ""


def record(java: Path, jars: Path) -> ClassRecording:
    recording = ClassRecording.begin(java, jars)
    assert recording is not None
    # A program of one jar: its main class ends with an error after it was loaded.
    command = [java, *recording.options, "-cp", class_path(jars), "org.slf4j.LoggerFactory"]
    subprocess.run(command, capture_output=True, check=False)
    return recording


def test_the_classes_of_a_first_start_become_an_archive(jars: Path):
    java = find_java()
    recording = record(java, jars)
    with recording.classes.open("a") as file:
        file.write("org/slf4j/Logg")  # Java has not written the rest yet
    main(java, jars, recording.classes)
    command = [java, "-Xshare:on", *archive_options(java, jars), "-cp", class_path(jars), "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert len(list(recording.classes.parent.iterdir())) == 1


def test_the_archive_is_made_by_a_process_of_its_own_session(jars: Path):
    recording = record(find_java(), jars)
    recording.make_archive()
    sessions = {os.getsid(pid) for pid in child_processes(os.getpid()) if str(recording.classes) in command_line(pid)}
    deadline = time.monotonic() + 60
    while not archive_options(recording.java, jars) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert archive_options(recording.java, jars)
    assert sessions
    assert os.getsid(0) not in sessions


def test_what_java_could_not_do_is_not_tried_again(jars: Path, tmp_path: Path):
    java = find_java()
    recording = ClassRecording.begin(java, jars)
    assert recording is not None
    recording.classes.write_text("no class list\n")
    with pytest.raises(EngineFailedError):
        main(java, jars, recording.classes)
    assert ClassRecording.begin(java, jars) is None


def test_classes_that_an_ended_start_has_left_are_removed(jars: Path):
    recording = ClassRecording.begin(find_java(), jars)
    assert recording is not None
    with subprocess.Popen(["true"]) as ended:
        pass
    left = recording.classes.with_suffix(f".classes-{ended.pid}")
    left.touch()
    ClassRecording.begin(find_java(), jars)
    assert not left.exists()


def test_what_java_cannot_do_leaves_nothing_behind(jars: Path, classes: Path, tmp_path: Path):
    with pytest.raises(EngineFailedError):
        write_archive(find_java(), jars, tmp_path / "missing")
    assert list(prepare_archive_path(find_java(), jars).parent.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["classes", "environment", "jars"]


@pytest.mark.spark
def test_spark_starts_from_the_archive_that_make_test_has_prepared():
    archive = prepare_archive_path(find_java(), spark_jars())
    if not archive.is_file():
        pytest.skip("headwater prepare")
    spark = get_spark()
    assert spark.session.range(3).count() == 3
    assert spark._jvm is not None
    assert str(archive) in Path(f"/proc/{spark._jvm.process.pid}/maps").read_text()
