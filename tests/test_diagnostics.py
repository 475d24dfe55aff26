"""The file of diagnostics of a process is bounded."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import logging, pathlib, sys
from headwater.diagnostics import write_diagnostics
write_diagnostics(pathlib.Path(sys.argv[1]), most=10_000)
for number in range(1_000):
    logging.getLogger("headwater.engine").info("attempt %d failed", number)
"""


def test_a_file_of_diagnostics_keeps_the_latest_and_not_everything(tmp_path):
    file = tmp_path / "engine.log"
    subprocess.run([sys.executable, "-c", _PROGRAM, str(file)], check=True)
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["engine.log", "engine.log.1"]
    assert sum(path.stat().st_size for path in files) <= 20_000
    assert "attempt 999 failed" in file.read_text()
