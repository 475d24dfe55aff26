"""The pages of errors and commands are complete, and every code can be linked to."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from headwater.cli.catalogue import VERBS
from headwater.config import SETTINGS
from headwater.errors import by_code
from headwater.log.kafka.support import SUPPORT

DOCS = Path(__file__).parent.parent / "docs"


def page(name: str) -> str:
    """A page's text as the documentation shows it."""
    spec = importlib.util.spec_from_file_location("generated_pages", DOCS / "_hooks" / "generated_pages.py")
    assert spec
    assert spec.loader
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return str(hook.on_page_markdown((DOCS / name).read_text()))


def test_the_page_of_errors_has_a_section_for_every_code():
    text = page("errors.md")
    for code, error in by_code().items():
        assert f"## {code} {{ #{code} }}" in text
        assert f"`{error.__name__}` · HTTP status {error.status} · exit code {error.exit_code}" in text


def test_the_page_of_commands_has_the_help_of_every_command():
    text = page("command-line.md")
    for name, verb in VERBS.items():
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"Usage: headwater {name}" in section
        assert verb.function
        assert "--json" in section


def test_every_setting_has_a_row_in_the_page_of_commands():
    text = page("command-line.md")
    for setting in SETTINGS:
        default = f"`{setting.default}`" if setting.default else ""
        assert f"| `{setting.variable}` | {default} | {setting.help} |" in text


def test_the_page_of_the_server_has_every_address():
    text = page("server.md")
    for address in ("/api/topics/{name}/events", "/api/topics/{name}/follow", "/api/lag"):
        assert f"`{address}`" in text


def test_the_page_of_kafka_has_the_table_of_support():
    text = page("kafka.md")
    for what, (embedded, kafka) in SUPPORT.items():
        assert f"| {what} | {embedded} | {kafka} |" in text


def test_pages_without_a_marker_stay_as_they_are():
    assert page("glossary.md") == (DOCS / "glossary.md").read_text()
