"""A process ends although a thread that is gone holds a lock: Python stops daemon threads anywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXIT_WITH_LOCK = """
import sys, threading
from pathlib import Path
from headwater.log import FileNotifier
from headwater.log.notifier import _InotifyHub
from headwater.log.storage import Disk
from headwater.log.storage.file_pool import FILES
from headwater.log.storage.segment import Segment, segment_file_name

folder = Path(sys.argv[1])
notifier = FileNotifier([folder])
notifier.wait(0)
segment = Segment(Disk(), folder, 0)
(folder / segment_file_name(0)).touch()
opened = segment.handle
lock = {"watches": _InotifyHub.of_process().lock, "files": FILES._lock}[sys.argv[2]]
holder = threading.Thread(target=lock.acquire)
holder.start()
holder.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
@pytest.mark.parametrize("lock", ["watches", "files"])
def test_a_process_ends_with_open_files(tmp_path: Path, lock: str):
    command = [sys.executable, "-c", EXIT_WITH_LOCK, str(tmp_path), lock]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (ended.returncode, ended.stderr) == (0, "")
