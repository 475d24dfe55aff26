"""A capture in a process of its own, which prints each of its steps until it is killed.

python -m tests.capture.contract.killed_capture KIND URL TABLE FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from headwater.log import EventLog
from tests.capture.contract.source_contract import run_capture


def main() -> None:
    """Capture."""
    kind, url, table, folder = sys.argv[1:]
    steps = sys.stdout
    with EventLog(Path(folder) / "log") as log:
        run_capture(log, kind, url, table, Path(folder), reached=lambda step: print(step, file=steps, flush=True))


if __name__ == "__main__":
    main()
