"""A missing program is an error with the command that installs it."""

from __future__ import annotations

import os

import pytest

from tests.services.system_packages import MissingProgramError, installed_program


@pytest.fixture
def bare_machine(tmp_path, monkeypatch):
    """A machine with nothing installed and a user who may not install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return tmp_path


@pytest.mark.usefixtures("bare_machine")
def test_missing_program_names_the_line_that_installs_it():
    with pytest.raises(MissingProgramError) as raised:
        installed_program("mvn", "maven")

    assert (raised.value.program, raised.value.package) == ("mvn", "maven")
    assert str(raised.value).endswith("apt-get install -y --no-install-recommends maven")
