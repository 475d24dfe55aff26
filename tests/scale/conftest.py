"""One Kafka, PostgreSQL and Spark cluster for the tests of this folder, whose workers see nothing of the drivers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.shell import Shell, local_servers

DRIVERS = "drivers"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A folder with a profile "local" and the servers it names; the workers find its folder "drivers" empty."""
    folder = tmp_path_factory.mktemp("scale")
    hidden = folder / DRIVERS
    hidden.mkdir()
    hiding = apart(hidden)
    with local_servers(folder, hiding) as shell:
        profile = folder / "headwater.toml"
        profile.write_text(profile.read_text().replace('checkpoints = "', 'checkpoints = "file://'))
        (hidden / "mark").touch()
        workers = [one["pid"] for name, one in shell.state.items() if name.startswith("spark-worker")]
        assert len(workers) == 2
        assert not any(Path(f"/proc/{pid}/root{hidden}/mark").exists() for pid in workers)
        yield shell


def apart(folder: Path) -> list[str]:
    """The words before a command that let it, and all it starts, find this folder empty.

    Where the kernel allows nobody to mount, the test is skipped, and that fails under CI: it would prove nothing.
    """
    script = 'mount -t tmpfs none "$0" && exec "$@"'
    for unshare in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        words = [*unshare, "sh", "-c", script, str(folder)]
        if subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0:
            return words
    pytest.skip("folders cannot be hidden from the workers: unshare --mount is not allowed here")
