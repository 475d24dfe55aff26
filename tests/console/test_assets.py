"""The built page in the package: complete, small enough, and exactly what its source gives."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headwater.console import ASSETS

SOURCE = Path(__file__).parents[2] / "console"
MANIFEST = json.loads((ASSETS / "manifest.json").read_text())
FIRST_LOAD = 150_000  # bytes of JavaScript, gzipped; what is drawn at once
CHARTS = 250_000  # bytes of JavaScript, gzipped, that are loaded when needed


def size(entry: str) -> int:
    return len(gzip.compress((ASSETS / MANIFEST[entry]["file"]).read_bytes()))


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_first_load_is_within_its_budget():
    assert size("index.html") + size("src/flow/FlowGraph.svelte") <= FIRST_LOAD


def test_charts_are_within_their_budget():
    assert size("src/parts/TimeChart.svelte") <= CHARTS


def test_every_file_of_the_manifest_is_there_and_no_other():
    named = {name for entry in MANIFEST.values() for name in (entry["file"], *entry.get("css", ()))}
    assert named | {"index.html", "manifest.json", "LICENSES.md"} == {path.name for path in ASSETS.iterdir()}


def test_the_licences_of_everything_inside_are_told():
    told = (ASSETS / "LICENSES.md").read_text()
    for package in ("svelte", "uplot", "@xyflow/svelte", "@dagrejs/dagre"):
        assert re.search(rf"^## {package} - ", told, re.MULTILINE), package


def test_nothing_is_made_of_markup_in_the_source():
    files = [*(SOURCE / "src").rglob("*.svelte"), *(SOURCE / "src").rglob("*.ts")]
    assert len(files) > 15
    for file in files:
        found = re.search(r"\{@html|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", file.read_text())
        assert found is None, file


def test_the_lock_names_no_registry():
    lock = json.loads((SOURCE / "package-lock.json").read_text())
    assert all("resolved" not in package for package in lock["packages"].values())


def test_the_source_gives_exactly_the_files_in_the_package(tmp_path):
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: the page cannot be built anew here")
    if not (SOURCE / "node_modules").exists():
        got = subprocess.run([npm, "ci", "--silent"], cwd=SOURCE, check=False, capture_output=True)
        if got.returncode:
            pytest.skip("npm cannot get the packages of the page here")
    build = [npm, "exec", "--", "vite", "build", "--outDir", str(tmp_path / "built"), "--emptyOutDir"]
    done = subprocess.run(build, cwd=SOURCE, env={**os.environ, "CI": "1"}, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert hashes(tmp_path / "built") == hashes(ASSETS), "make console, and commit what it gives"
