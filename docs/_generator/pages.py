"""Writes what the code knows into the pages: public names, commands, errors, settings, addresses and support.

A page has the text between two comments, so that it can be read in the repository; `make docs` writes it anew, and a
test fails when it is out of date. `python -m docs._generator.pages` only writes the pages.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

import cyclopts

from docs._generator.names import names_text
from headwater.cli.catalogue import COMMANDS, GROUPS, Command
from headwater.cli.options import DEFAULTS, Options
from headwater.cli.parser import command_app
from headwater.config import SETTINGS
from headwater.errors import HeadwaterError, by_code
from headwater.log import EventLog
from headwater.log.kafka.kafka_log import SUPPORT
from headwater.queues.rabbitmq.capabilities import CAPABILITIES as QUEUE_SUPPORT
from headwater.server.gateway import Gateway
from headwater.server.limits import Limits
from headwater.server.web_server import make_routes

DOCS: Final = Path(__file__).parent.parent


def errors_text() -> str:
    """All errors in the order of their codes, the general ones included."""
    return "\n".join(_error_section(error) for _, error in sorted(by_code().items()))


def _error_section(error: type[HeadwaterError]) -> str:
    again = "a retry may help" if error.retryable else "a retry does not help"
    facts = f"`{error.__name__}` · HTTP status {error.status} · exit code {error.exit_code} · {again}"
    text = inspect.cleandoc(error.__doc__ or "").split("\nArgs:")[0].strip()
    return f"## {error.code}\n\n{facts}\n\n{text}\n"


def commands_text() -> str:
    """All commands with their arguments and options, group by group."""
    verbs = [verb for group in GROUPS for verb in COMMANDS.values() if verb.group == group]
    return "\n".join(_command_section(verb) for verb in verbs)


def options_text() -> str:
    """The options that every command takes."""
    return "\n".join(_argument_line(each) for each in _arguments(_no_command))


def _no_command(*, options: Options = DEFAULTS) -> None:
    """A command without arguments of its own.

    Args:
        options: Options of every command.
    """


def _command_section(verb: Command) -> str:
    function = getattr(importlib.import_module(verb.module), verb.function)
    own = [each for each in _arguments(function) if each.names not in _OF_EVERY_COMMAND]
    words = [_value_of(each, each.name) for each in own if not each.name.startswith("-")]
    usage = " ".join([f"headwater {verb.name}", *words, "[OPTIONS]"])
    text = inspect.cleandoc(function.__doc__ or "").split("\nArgs:")[0].strip()
    return "\n".join([f"## {verb.name}\n", f"`{usage}`\n", f"{text}\n", *map(_argument_line, own), ""])


def _arguments(function: Callable[..., Any]) -> list[cyclopts.Argument]:
    """The arguments and options of a command, described by its docstring."""
    app = command_app(function)
    return [each for each in app.assemble_argument_collection(parse_docstring=True) if each.show]


def _argument_line(each: cyclopts.Argument) -> str:
    flag = bool in (each.hint, *get_args(each.hint))
    negated = () if each.field_info.default is False else each.negatives
    names = [name for name in each.names if name in negated or name not in each.negatives]
    written = [name if flag or not name.startswith("-") else f"{name} {_value(each)}" for name in names]
    default = each.field_info.default
    shown = isinstance(default, str | int | float) and not isinstance(default, bool) and "default:" not in _help(each)
    return f"- {', '.join(f'`{name}`' for name in written)}: {_help(each)}{f' [default: {default}]' if shown else ''}"


def _help(each: cyclopts.Argument) -> str:
    return " ".join((each.parameter.help or "").split())


def _value(each: cyclopts.Argument) -> str:
    """The placeholder of an option's value: its choices, a number, or its name."""
    for hint in (each.hint, *get_args(each.hint)):
        if get_origin(hint) is Literal:
            return "|".join(map(str, get_args(hint)))
        if hint in (int, float):
            return "N"
    return next(name for name in each.names if name.startswith("--")).strip("-").replace("-", "_").upper()


def _value_of(each: cyclopts.Argument, name: str) -> str:
    many = f"{name} …" if get_origin(each.hint) is tuple else name
    return many if each.required else f"[{many}]"


_OF_EVERY_COMMAND: Final = frozenset(each.names for each in _arguments(_no_command))


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
_SOURCES: Final = {
    "PostgreSQL": "capture/postgres/test_contract.py",
    "PostgreSQL by triggers": "capture/postgres/test_trigger_contract.py",
    "MariaDB": "capture/mariadb/test_contract.py",
    "SQLite": "capture/sqlite/test_contract.py",
}
_READERS: Final = dict.fromkeys(_STORES, "")  # no files of their own: each test runs over both, see STORES
SUITES: Final = (
    Suite("Log: sending", ("client/sending.py",), _CLIENTS),
    Suite("Log: invalid events", ("client/diverting.py",), _CLIENTS),
    Suite("Log: reading", ("client/reading.py",), _CLIENTS),
    Suite("Log: groups, and the asynchronous client", ("client/groups.py", "client/contract.py"), _CLIENTS),
    Suite("Log: deletion", ("client/deleting.py",), _CLIENTS),
    Suite("Ledger and store: writing", ("store/contract.py", "store/state_contract.py"), _STORES),
    Suite(
        "Store: reading", ("store/test_view_reader.py", "store/test_wait.py", "store/test_system_views.py"), _READERS
    ),
    Suite("Queues", ("queues/contract.py",), _BROKERS),
    Suite("Capture", ("capture/contract/source_contract.py",), _SOURCES),
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
    "database",
}  # what tests of a suite ask for


def suites_text() -> str:
    """The support matrix: every promise of the suites, and what each implementation makes of it."""
    return "\n".join(_suite_text(suite) for suite in SUITES)


def _suite_text(suite: Suite) -> str:
    differing = {name: dict(_tests(file, {"self"})) if file else {} for name, file in suite.over.items()}
    lacking = {name: _lacking(file) if file else set() for name, file in suite.over.items()}
    gaps = {name: _gaps(file) if file else {} for name, file in suite.over.items()}
    rows = [
        f"| {promise.removeprefix('test_').replace('_', ' ')} | "
        + " | ".join(
            gaps[name].get(promise) or ("no" if needs & lacking[name] else _cell(differing[name].get(promise)))
            for name in suite.over
        )
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


def _gaps(file: str) -> dict[str, str]:
    """The promises that an implementation cannot keep, with the reason: `gaps: ClassVar = {…}`."""
    for found in ast.walk(ast.parse((_TESTS / file).read_text())):
        match found:
            case ast.AnnAssign(target=ast.Name(id="gaps"), value=ast.Dict() as given):
                return {promise: f"no: {reason}" for promise, reason in ast.literal_eval(given).items()}
    return {}


def _tests(file: str, asking: set[str]) -> Iterator[tuple[str, str]]:
    """The tests of a file that ask for one of these, in order, with what each says about itself."""
    for found in ast.walk(ast.parse((_TESTS / file).read_text())):
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if found.name.startswith("test_") and asking & {argument.arg for argument in found.args.args}:
            yield found.name, (ast.get_docstring(found) or "").split("\n")[0]


TEXTS: Final[dict[str, Callable[[], str]]] = {
    "errors": errors_text,
    "commands": commands_text,
    "options": options_text,
    "routes": routes_text,
    "settings": settings_text,
    "support": support_text,
    "queue support": queue_support_text,
    "suites": suites_text,
}
_GENERATED: Final = re.compile(
    r"(?P<start><!-- generated: (?P<what>[^>]+?) -->\n).*?(?P<end><!-- end of generated text -->)", re.DOTALL
)


def fill(page: str) -> str:
    """Returns the page with its generated parts written anew.

    `<!-- generated: errors -->` is replaced up to `<!-- end of generated text -->`; `names App Client` has the
    reference of these names.
    """
    return _GENERATED.sub(lambda found: f"{found['start']}\n{_text_of(found['what'])}\n{found['end']}", page)


def _text_of(what: str) -> str:
    kind, _, names = what.partition(" ")
    return (names_text(names.split()) if kind == "names" else TEXTS[what]()).rstrip() + "\n"


def pages() -> list[Path]:
    """Returns the pages with generated parts."""
    return sorted(page for page in DOCS.rglob("*.md") if _GENERATED.search(page.read_text()))


def main() -> None:
    """Write all pages anew."""
    for page in pages():
        before = page.read_text()
        if (after := fill(before)) != before:
            page.write_text(after)


if __name__ == "__main__":
    main()
