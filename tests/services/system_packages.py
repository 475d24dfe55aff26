"""Finds programs of system packages; installs them if the user is root, otherwise raises with the install command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["MissingProgramError", "UnavailableError", "install_package", "installed_program"]


class UnavailableError(RuntimeError):
    """A server cannot run on this machine; the message says what is missing and how to install it."""


class MissingProgramError(UnavailableError):
    """A program is missing and could not be installed; the message has the command that installs it."""

    def __init__(self, program: str, package: str, detail: str = "") -> None:
        self.program = program
        self.package = package
        fix = f"fix: sudo apt-get install -y --no-install-recommends {package}"
        super().__init__("\n".join(filter(None, [f"{program} is not on this machine", detail, fix])))


def installed_program(program: str, package: str) -> Path:
    """Returns the path of a program; root installs its package first if it is missing.

    Raises:
        MissingProgramError: It is missing and this user may not install it, or the installation failed.
    """
    found = shutil.which(program)
    if found is None:
        install_package(program, package)
        found = shutil.which(program)
    if found is None:
        raise MissingProgramError(program, package, f"the package {package} was installed without it")
    return Path(found)


def install_package(program: str, package: str) -> None:
    """Install a package with apt-get, which needs root."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise MissingProgramError(program, package)
    sys.stderr.write(f"installing {package} for {program} ...\n")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", package]):
        command = ["apt-get", "-q", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip()[-500:]
            raise MissingProgramError(program, package, f"apt-get {arguments[0]}: {said}")
