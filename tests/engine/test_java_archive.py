"""The archive of Spark's classes: Java writes and uses it, and starts without it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.engine.spark.java import (
    archive_options,
    class_path,
    find_java,
    prepare_archive_path,
    spark_jars,
    write_archive,
)
from headwater.errors import EngineFailedError, NotWritableError
from headwater.testing.world import get_spark

WANTED = "java/lang/Object id: 1\norg/slf4j/LoggerFactory id: 2\n"


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One jar of Spark's, in an environment of its own."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
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


def test_an_environment_of_somebody_else_is_told(jars: Path, classes: Path):
    Path(sys.prefix).write_text("no folder")
    with pytest.raises(NotWritableError):
        write_archive(find_java(), jars, classes)


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
