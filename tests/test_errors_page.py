"""The page of errors is complete and every code can be linked to."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from headwater.errors import by_code

DOCS = Path(__file__).parent.parent / "docs"


def hook():
    spec = importlib.util.spec_from_file_location("errors_page", DOCS / "_hooks" / "errors_page.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_a_section_for_every_code():
    page = hook().on_page_markdown((DOCS / "errors.md").read_text())
    for code, error in by_code().items():
        assert f"## {code} {{ #{code} }}" in page
        assert f"`{error.__name__}` · HTTP status {error.status} · exit code {error.exit_code}" in page


def test_pages_without_the_marker_stay_as_they_are():
    assert hook().on_page_markdown("# Glossary\n") == "# Glossary\n"
