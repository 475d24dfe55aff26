"""The installed command line, in a folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwater.profiles import Profile, read_profile
from tests.cli.conftest import COMMAND

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}


class Shell:
    """Runs `headwater` in a folder, after a prefix command if given, and collects all output."""

    def __init__(self, folder: Path, before: Sequence[str] = (), env: Mapping[str, str] = CLEAN) -> None:
        self.folder = folder
        self._before = before
        self._env = env
        self.printed = ""

    def __call__(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        command = [*self._before, COMMAND, *words, "--json"]
        done = subprocess.run(
            command, cwd=self.folder, env=self._env, capture_output=True, text=True, check=False, timeout=400
        )
        self.printed += done.stdout + done.stderr
        assert done.returncode == code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    @property
    def profile(self) -> Profile:
        """The profile that `--write` wrote."""
        return read_profile("local", self.folder)

    @property
    def state(self) -> dict[str, dict[str, Any]]:
        """The content of services.json."""
        found: dict[str, Any] = json.loads((self.folder / ".headwater-services/services.json").read_text())
        return found


@contextmanager
def local_servers(folder: Path, before: Sequence[str] = ()) -> Iterator[Shell]:
    """Yields a folder with the profile "local" and its servers: Kafka, PostgreSQL, a Spark cluster of two workers.

    Args:
        folder: The folder.
        before: The prefix of the command that starts the cluster.
    """
    shell = Shell(folder)
    try:
        shell("services", "up", "kafka", "postgres", "--write")
        Shell(folder, before)("cluster", "up", "--workers", "2", "--write")
        yield shell
    finally:
        shell("cluster", "down")
        shell("services", "down")
