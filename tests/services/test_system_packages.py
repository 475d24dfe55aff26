"""What tests say of programs that are not there."""

from __future__ import annotations

import os

import pytest

from tests.services import jars
from tests.services.system_packages import MissingProgramError, installed_program


@pytest.fixture
def bare_machine(tmp_path, monkeypatch):
    """A machine with nothing installed and a user who may not install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return tmp_path


@pytest.mark.usefixtures("bare_machine")
def test_missing_program_names_the_line_that_installs_it():
    with pytest.raises(MissingProgramError) as raised:
        installed_program("mvn", "maven")

    assert (raised.value.program, raised.value.package) == ("mvn", "maven")
    assert str(raised.value).endswith("apt-get install -y --no-install-recommends maven")


@pytest.mark.usefixtures("bare_machine")
def test_missing_java_is_asked_for_by_its_package():
    with pytest.raises(MissingProgramError) as raised:
        jars.java()

    assert raised.value.package == "openjdk-17-jre-headless"


def test_java_older_than_needed_is_refused_with_its_version(bare_machine):
    old = bare_machine / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)

    with pytest.raises(MissingProgramError, match="is Java 11"):
        jars.java()


def test_java_home_is_taken_before_the_path(bare_machine, monkeypatch):
    for folder, version in (("old", "1.8.0_392"), ("home/bin", "21.0.1")):
        (bare_machine / folder).mkdir(parents=True)
        (bare_machine / folder / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        (bare_machine / folder / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(bare_machine / "old"))
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "home"))

    assert jars.java() == bare_machine / "home/bin/java"


def test_jars_in_the_cache_need_no_maven(bare_machine, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare_machine))
    (bare_machine / "headwater/some-1.0").mkdir(parents=True)

    assert jars.jars("some-1.0", ("any:some:1.0",)) == bare_machine / "headwater/some-1.0"
