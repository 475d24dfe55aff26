"""Writes what the code knows into the pages while the documentation is built, so that it cannot be out of date.

A page holds a marker; the text comes from the error classes, the command line, the server, the settings and the tests.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from headwater.cli.catalogue import COMMANDS, GROUPS, Command
from headwater.cli.parser import run_command
from headwater.config import SETTINGS
from headwater.errors import HeadwaterError, by_code
from headwater.log import EventLog
from headwater.log.kafka.kafka_log import SUPPORT
from headwater.queues.rabbitmq.capabilities import CAPABILITIES as QUEUE_SUPPORT
from headwater.server.gateway import Gateway
from headwater.server.limits import Limits
from headwater.server.web_server import make_routes

WIDTH: Final = "80"  # columns of a help text that fit a page


def errors_text() -> str:
    """All errors in the order of their codes, the general ones included."""
    return "\n".join(_error_section(error) for _, error in sorted(by_code().items()))


def _error_section(error: type[HeadwaterError]) -> str:
    heading = f"## {error.code} {{ #{error.code} }}"
    again = "a retry may help" if error.retryable else "a retry does not help"
    facts = f"`{error.__name__}` · HTTP status {error.status} · exit code {error.exit_code} · {again}"
    text = inspect.cleandoc(error.__doc__ or "").split("\nArgs:")[0].strip()
    return f"{heading}\n\n{facts}\n\n{text}\n"


def commands_text() -> str:
    """All commands with their help, group by group."""
    verbs = [verb for group in GROUPS for verb in COMMANDS.values() if verb.group == group]
    return "\n".join(f"## {verb.name}\n\n```text\n{_help_of(verb)}\n```\n" for verb in verbs)


def _help_of(verb: Command) -> str:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run_command(verb, ["--help", "--plain"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return printed.getvalue().strip()


def routes_text() -> str:
    """Every address of the server in one table, from its OpenAPI description."""
    with tempfile.TemporaryDirectory() as folder, EventLog(folder) as log:
        paths = make_routes(Gateway(log, Limits())).openapi()["paths"]
    rows = [
        f"| `{method.upper()}` | `{path}` | {about['summary']} |"
        for path, methods in paths.items()
        for method, about in methods.items()
    ]
    return "\n".join(["| method | address | what it does |", "|---|---|---|", *rows])


def settings_text() -> str:
    """Every setting in one table."""
    code = "`{}`"
    rows = [f"| `{one.variable}` | {one.default and code.format(one.default)} | {one.help} |" for one in SETTINGS]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def support_text() -> str:
    """What a topic can do in a folder and on Kafka, in one table."""
    rows = [f"| {what} | {embedded} | {kafka} |" for what, (embedded, kafka) in SUPPORT.items()]
    return "\n".join(["| | embedded | Kafka |", "|---|---|---|", *rows])


def queue_support_text() -> str:
    """What a queue can do in the data folder and on RabbitMQ, in one table."""
    rows = [f"| {what} | {embedded} | {rabbit} |" for what, (embedded, rabbit) in QUEUE_SUPPORT.items()]
    return "\n".join(["| | data folder | RabbitMQ |", "|---|---|---|", *rows])


class Suite(NamedTuple):
    """Tests that several implementations pass: the files they are in, and the file of each implementation."""

    title: str
    files: tuple[str, ...]
    over: dict[str, str]


_CLIENTS: Final = {
    "folder": "client/test_folder_client.py",
    "HTTP": "client/test_http_client.py",
    "Kafka": "client/test_kafka_client.py",
}
_STORES: Final = {"SQLite": "store/test_sqlite_dialect.py", "PostgreSQL": "store/test_postgres_dialect.py"}
_BROKERS: Final = {"data folder": "queues/test_embedded_broker.py", "RabbitMQ": "queues/rabbitmq/test_contract.py"}
_READERS: Final = dict.fromkeys(_STORES, "")  # no files of their own: each test runs over both, see STORES
SUITES: Final = (
    Suite("Log: sending", ("client/sending.py",), _CLIENTS),
    Suite("Log: reading", ("client/reading.py",), _CLIENTS),
    Suite("Log: groups, and the asynchronous client", ("client/groups.py", "client/contract.py"), _CLIENTS),
    Suite("Ledger and store: writing", ("store/contract.py", "store/state_contract.py"), _STORES),
    Suite(
        "Store: reading", ("store/test_view_reader.py", "store/test_wait.py", "store/test_system_views.py"), _READERS
    ),
    Suite("Queues", ("queues/contract.py",), _BROKERS),
)
_TESTS: Final = Path(__file__).parent.parent.parent / "tests"
_RUN_OVER_ALL: Final = {
    "client",
    "another",
    "where",
    "store",
    "views",
    "sales",
    "broker",
}  # what tests of a suite ask for


def suites_text() -> str:
    """The support matrix: every promise of the suites, and what each implementation makes of it."""
    return "\n".join(_suite_text(suite) for suite in SUITES)


def _suite_text(suite: Suite) -> str:
    differing = {name: dict(_tests(file, {"self"})) if file else {} for name, file in suite.over.items()}
    lacking = {name: _lacking(file) if file else set() for name, file in suite.over.items()}
    rows = [
        f"| {promise.removeprefix('test_').replace('_', ' ')} | "
        + " | ".join("no" if needs & lacking[name] else _cell(differing[name].get(promise)) for name in suite.over)
        + " |"
        for file in suite.files
        for promise, needs in _promises(file)
    ]
    heading = f"| | {' | '.join(suite.over)} |\n|---|{'---|' * len(suite.over)}"
    files = ", ".join(f"`tests/{file}`" for file in (*suite.files, *filter(None, suite.over.values())))
    return "\n".join([f"## {suite.title}\n\n{files}\n", heading, *rows, ""])


def _cell(difference: str | None) -> str:
    return "yes" if difference is None else f"yes, with a difference: {difference}"


def _promises(file: str) -> Iterator[tuple[str, set[str]]]:
    """The tests of a suite, with what each `needs` of an implementation, by itself or by its class."""
    needs: dict[str, set[str]] = {}
    for found in ast.walk(ast.parse((_TESTS / file).read_text())):  # a class comes before what is in it
        if isinstance(found, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            own = _needs(found) | needs.get(found.name, set())
            inner = found.body if isinstance(found, ast.ClassDef) else ()
            needs |= {each.name: own for each in inner if isinstance(each, ast.FunctionDef)}
            needs[found.name] = own
    for promise, _ in _tests(file, _RUN_OVER_ALL):
        yield promise, needs[promise]


def _needs(found: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    calls = [mark for mark in found.decorator_list if isinstance(mark, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "needs"]
    return {ast.literal_eval(word) for call in named for word in call.args}


def _lacking(file: str) -> set[str]:
    """What an implementation says it cannot do: `SUPPORTS = EVERYTHING - {…}`."""
    for found in ast.parse((_TESTS / file).read_text()).body:
        match found:
            case ast.Assign(targets=[ast.Name(id="SUPPORTS")], value=ast.BinOp(right=left_out)):
                return set(ast.literal_eval(left_out))
    return set()


def _tests(file: str, asking: set[str]) -> Iterator[tuple[str, str]]:
    """The tests of a file that ask for one of these, in order, with what each says about itself."""
    for found in ast.walk(ast.parse((_TESTS / file).read_text())):
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if found.name.startswith("test_") and asking & {argument.arg for argument in found.args.args}:
            yield found.name, (ast.get_docstring(found) or "").split("\n")[0]


MARKERS: Final[dict[str, Callable[[], str]]] = {
    "<!-- errors -->": errors_text,
    "<!-- commands -->": commands_text,
    "<!-- routes -->": routes_text,
    "<!-- settings -->": settings_text,
    "<!-- support -->": support_text,
    "<!-- queue support -->": queue_support_text,
    "<!-- suites -->": suites_text,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page; only those with a marker change."""
    for marker, text in MARKERS.items():
        if marker in markdown:
            markdown = markdown.replace(marker, text())
    return markdown
