"""The pages of errors and commands are complete, and every code can be linked to."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest

from headwater.cli.catalogue import COMMANDS
from headwater.config import SETTINGS
from headwater.errors import by_code
from headwater.log.kafka.kafka_log import SUPPORT
from headwater.queues.rabbitmq.capabilities import CAPABILITIES as QUEUE_SUPPORT
from tests.client import test_folder_client, test_http_client, test_kafka_client
from tests.client.contract import ClientContract
from tests.queues import contract as queue_contract
from tests.queues.rabbitmq import test_contract as test_rabbitmq
from tests.store import test_postgres_dialect, test_sqlite_dialect, test_system_views, test_view_reader, test_wait
from tests.store.contract import StoreContract
from tests.store.given import BOTH

DOCS = Path(__file__).parent.parent / "docs"


def hook() -> ModuleType:
    """What writes the pages."""
    spec = importlib.util.spec_from_file_location("generated_pages", DOCS / "_hooks" / "generated_pages.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    """A page's text as the documentation shows it."""
    return str(hook().on_page_markdown((DOCS / name).read_text()))


def test_the_page_of_errors_has_a_section_for_every_code():
    text = page("errors.md")
    for code, error in by_code().items():
        assert f"## {code} {{ #{code} }}" in text
        assert f"`{error.__name__}` · HTTP status {error.status} · exit code {error.exit_code}" in text


def test_the_page_of_commands_has_the_help_of_every_command():
    text = page("command-line.md")
    for name, verb in COMMANDS.items():
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


def test_pages_without_a_marker_stay_as_they_are():
    assert page("glossary.md") == (DOCS / "glossary.md").read_text()
