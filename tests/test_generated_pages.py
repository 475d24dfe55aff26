"""The pages of the reference are complete, can be read in the repository, and are not out of date."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import headwater
import headwater.testing
from docs._generator.pages import fill, pages
from headwater.app import TopicOptions
from headwater.cli.catalogue import COMMANDS
from headwater.cli.parser import run_command
from headwater.config import SETTINGS
from headwater.errors import by_code
from headwater.log.kafka.kafka_log import SUPPORT
from headwater.queues.rabbitmq.capabilities import CAPABILITIES as QUEUE_SUPPORT
from tests.capture.sqlite import test_contract as test_sqlite_contract
from tests.client import test_folder_client, test_http_client, test_kafka_client
from tests.client.contract import ClientContract
from tests.queues import contract as queue_contract
from tests.queues.rabbitmq import test_contract as test_rabbitmq
from tests.store import test_postgres_dialect, test_sqlite_dialect, test_system_views, test_view_reader, test_wait
from tests.store.contract import StoreContract
from tests.store.given import BOTH

DOCS = Path(__file__).parent.parent / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text()


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_the_generated_parts_of_a_page_are_current(path):
    assert path.read_text() == fill(path.read_text()), "run: .venv/bin/python -m docs._generator.pages"


def test_a_generated_part_replaces_what_is_between_its_comments():
    old = "a\n<!-- generated: errors -->\nold\n<!-- end of generated text -->\nb\n"
    new = fill(old)
    assert new.startswith("a\n<!-- generated: errors -->\n\n## ")
    assert new.endswith("\n<!-- end of generated text -->\nb\n")
    assert "old" not in new.splitlines()
    assert fill(new) == new


@pytest.mark.parametrize("module", [headwater, headwater.testing])
def test_every_public_name_has_a_section_in_the_reference(module):
    sections = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    for name in set(module.__all__) - {"HeadwaterError"}:  # on the page of errors
        assert f"\n## {name}\n" in sections, name


def test_every_option_of_an_app_is_explained_where_it_is_used():
    section = page("reference/app.md").split("\n### App.topic\n")[1].split("\n### ")[0]
    for option in TopicOptions.__annotations__:
        assert f"\n- `{option}`: " in section
    assert "key: str | tuple[str, ...] = …," in section


def test_the_page_of_errors_has_a_section_for_every_code():
    text = page("errors.md")
    for code, error in by_code().items():
        assert f"\n## {code}\n" in text
        assert f"`{error.__name__}` · HTTP status {error.status} · exit code {error.exit_code}" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_commands_has_every_option_that_the_help_of_a_command_names(name, capsys):
    text = page("command-line.md")
    run_command(COMMANDS[name], ["--help", "--plain"])
    section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
    common = text.split("\n## Options of every command\n")[1].split("\n## ")[0]
    offered = set(re.findall(r"(?<!no)--(?!no-|empty-|help)[a-z-]+", capsys.readouterr().out.split("Parameters:")[-1]))
    assert f"`headwater {name}" in section
    assert offered <= set(re.findall(r"--[a-z-]+", section + common))


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


def test_the_page_of_rabbitmq_has_the_table_of_support():
    text = page("rabbitmq.md")
    for what, (embedded, rabbit) in QUEUE_SUPPORT.items():
        assert f"| {what} | {embedded} | {rabbit} |" in text


@pytest.mark.parametrize(
    ("contract", "over", "title"),
    [
        (
            StoreContract,
            (test_sqlite_dialect.TestSqliteDialect, test_postgres_dialect.TestPostgresDialect),
            "Ledger and store: writing",
        ),
        (
            ClientContract,
            (test_folder_client.TestFolderClient, test_http_client.TestHttpClient, test_kafka_client.TestKafkaClient),
            "Log: ",
        ),
    ],
)
def test_the_support_matrix_has_what_each_implementation_inherits(contract, over, title):
    rows = {
        line.split(" | ")[0].removeprefix("| "): line.strip("| ").split(" | ")[1:]
        for section in page("support.md").split("\n## ")
        if section.startswith(title)
        for line in section.splitlines()
    }
    promises = [name for name in dir(contract) if name.startswith("test_")]
    assert promises
    for promise in promises:
        cells = rows[promise.removeprefix("test_").replace("_", " ")]
        for cell, implementation in zip(cells, over, strict=True):
            own = vars(implementation).get(promise)
            reason = "" if own is None else inspect.getdoc(own).splitlines()[0]
            assert cell == ("yes" if own is None else f"yes, with a difference: {reason}")


def test_the_support_matrix_has_the_tests_that_run_over_both_stores():
    text = page("support.md").split("\n## Store: reading")[1]
    for module in (test_system_views, test_view_reader, test_wait):
        assert module.STORES == BOTH
        for name, test in vars(module).items():
            both = name.startswith("test_") and "store" in _fixtures(module, test)
            assert both == (f"| {name.removeprefix('test_').replace('_', ' ')} | yes | yes |" in text), name


def _fixtures(module: ModuleType, function: object) -> set[str]:
    """What a test asks for, and what that asks for in turn."""
    asked = set(inspect.signature(function).parameters) if inspect.isfunction(function) else set()
    return asked | ({"store"} if "views" in asked else set())


def test_the_support_matrix_has_what_a_broker_leaves_out():
    text = page("support.md").split("\n## Queues")[1]
    assert "| a message is delivered as published | yes | yes |" in text
    assert "| higher priorities are delivered first | yes | no |" in text
    assert "| published is the sum of all states | yes | no |" in text
    assert "| redeliveries are counted | yes | yes |" in text
    assert text.count(" | no |") == sum(
        not test_rabbitmq.SUPPORTS.issuperset(mark.args)
        for name in dir(queue_contract)
        if name.startswith("Test")
        for test in vars(getattr(queue_contract, name)).values()
        for mark in getattr(test, "pytestmark", ())
    )


def test_the_support_matrix_has_what_a_source_leaves_out():
    text = page("support.md").split("\n## Capture")[1]
    assert "| rolled back changes are never seen | yes | yes | yes | yes |" in text
    for reason in test_sqlite_contract.TestSqlite.gaps.values():
        assert f"| no: {reason} |" in text


def test_pages_without_a_marker_stay_as_they_are():
    assert fill(page("glossary.md")) == page("glossary.md")
