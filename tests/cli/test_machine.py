"""The cores and the memory of a machine, with the limits of control groups in both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.machine import core_limit, read_memory

GIB = 1 << 30


@pytest.fixture(autouse=True)
def every_core_is_allowed(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A root folder with 16 GiB of memory, the groups of this process, and the files of control groups."""
    written = {
        "proc/meminfo": f"MemTotal:       {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {4 * GIB // 1024} kB\n",
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_machine_without_limits_may_be_used_whole(tmp_path):
    root = machine(tmp_path, "0::/\n", {"memory.max": "max\n", "cpu.max": "max 100000\n"})
    memory = read_memory(root)
    assert (memory.total, memory.limit, memory.available, memory.usable) == (16 * GIB, None, 4 * GIB, 16 * GIB)
    assert core_limit(root) is None


def test_the_lowest_limit_of_a_group_and_of_those_above_it_counts(tmp_path):
    files = {
        "shop.slice/memory.max": str(3 * GIB),
        "shop.slice/cpu.max": "150000 100000",
        "shop.slice/app/memory.max": str(5 * GIB),
        "shop.slice/app/cpu.max": "400000 100000",
    }
    root = machine(tmp_path, "0::/shop.slice/app\n", files)
    assert read_memory(root).limit == 3 * GIB
    assert core_limit(root) == 1.5


def test_a_container_sees_its_own_group_at_the_top_of_the_tree(tmp_path):
    root = machine(tmp_path, "0::/\n", {"memory.max": str(2 * GIB), "cpu.max": "50000 100000"})
    assert read_memory(root).usable == 2 * GIB
    assert core_limit(root) == 0.5


def test_version_1_has_a_tree_for_each_resource(tmp_path):
    files = {
        "memory/box/memory.limit_in_bytes": str(2 * GIB),
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "cpu,cpuacct/box/cpu.cfs_quota_us": "200000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
    }
    root = machine(tmp_path, "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n", files)
    assert read_memory(root).limit == 2 * GIB
    assert core_limit(root) == 2.0


def test_a_limit_above_the_memory_of_the_machine_is_none(tmp_path):
    root = machine(tmp_path, "0::/\n", {"memory.max": str(64 * GIB)})
    assert read_memory(root).limit is None


def test_cores_that_the_process_may_not_use_are_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert core_limit(machine(tmp_path, "0::/\n", {})) == 1.0


def test_a_system_without_these_files_reports_nothing(tmp_path):
    assert read_memory(tmp_path) is None
    assert core_limit(tmp_path) is None
