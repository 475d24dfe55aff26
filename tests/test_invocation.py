"""The commands in a fix: completed by how the process was called, and all of them real."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import cyclopts
import pytest

from headwater.cli.catalogue import COMMANDS
from headwater.cli.parser import command_app
from headwater.errors import HeadwaterError
from headwater.invocation import FOLDER_COMMANDS, PLACELESS_COMMANDS, Invocation, find_commands

ROOT = Path(__file__).parent.parent
SHOP = Invocation(app="shop.py", data="/srv/shop", profile="prod")


def parse_command(words: list[str]) -> None:
    """Parse a command as `headwater` does, without running it.

    Raises:
        cyclopts.CycloptsError: It would be refused.
    """
    if words[0] in ("--help", "--version"):
        return
    command = COMMANDS[words[0]]
    target = getattr(importlib.import_module(command.module), command.function)
    app = command_app(target)
    if "--help" not in words:
        app.parse_args(words[1:], print_error=False, exit_on_error=False)


@pytest.mark.parametrize(
    ("fix", "completed"),
    [
        ("headwater run app.py", "headwater run shop.py --data /srv/shop --profile prod"),
        (
            "headwater run --rebuild totals",
            "headwater run shop.py --rebuild totals --data /srv/shop --profile prod",
        ),
        ("headwater run other.py --data x", "headwater run other.py --data x --profile prod"),
        ("headwater help BAD_PIPELINE", "headwater help BAD_PIPELINE"),
        (
            "headwater doctor, or rebuild totals from the log",
            "headwater doctor --data /srv/shop --profile prod, or rebuild totals from the log",
        ),
        (
            "HEADWATER_SPARK_MEMORY=4g headwater run APP, or less data per event",
            "HEADWATER_SPARK_MEMORY=4g headwater run shop.py --data /srv/shop --profile prod, or less data per event",
        ),
        ("return the DataFrame", "return the DataFrame"),
    ],
)
def test_commands_of_a_fix_get_app_folder_and_profile(fix, completed):
    assert SHOP.complete(fix) == completed
    assert SHOP.complete(completed) == completed


def test_paths_with_spaces_are_quoted():
    completed = Invocation(app="my app.py", data="/srv/the shop").complete("headwater run app.py")
    assert shlex.split(completed) == ["headwater", "run", "my app.py", "--data", "/srv/the shop"]


def test_a_url_is_no_folder():
    remote = Invocation(data="http://127.0.0.1:8642")
    assert remote.complete("headwater verify") == "headwater verify"
    assert remote.complete("headwater lag") == "headwater lag --data http://127.0.0.1:8642"


@pytest.mark.parametrize(
    ("words", "fix", "data", "completed"),
    [
        ("topics delete orders --data d", "add --yes", {"name": "orders"}, "topics delete orders --data d --yes"),
        ("cat orders --limit 0", "--limit 10", {}, "cat orders --limit 10"),
        ("status --profile=prd", "--profile prod", {}, "status --profile prod"),
        ("tail oders --data d", "orders", {"topic": "oders"}, "tail orders --data d"),
        ("plan shops/ordr.py", "shops/order.py", {"path": "shops/ordr.py"}, "plan shops/order.py"),
        ("run app.py --select a --select b", "--select c", {}, None),
        ("cat tail", "orders", {"topic": "nope"}, None),
    ],
)
def test_an_option_or_a_name_as_fix_becomes_the_whole_command(words, fix, data, completed):
    error = HeadwaterError("refused", fix=fix, **data)
    Invocation.of_words(words.split()).complete_error(error)
    assert error.fix == (fix if completed is None else f"headwater {completed}")


def test_an_event_with_commas_stays_one_argument():
    error = HeadwaterError("no topic", fix="orders", topic="oders")
    Invocation.of_words(["send", "oders", '{"a": 1, "b": 2}', "--data", "d"]).complete_error(error)
    assert shlex.split(error.fix or "") == ["headwater", "send", "orders", '{"a": 1, "b": 2}', "--data", "d"]


def test_the_commands_with_special_rules_exist():
    assert set(COMMANDS) >= FOLDER_COMMANDS | PLACELESS_COMMANDS


def literal_texts(tree: ast.AST) -> list[str]:
    """Returns the texts of a module that are no docstrings; each value of an f-string becomes a name."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docs | parts):
            found.append(node.value)
    return found


def commands_of_source(file: Path) -> list[list[str]]:
    """Returns the commands in the texts that a module prints or raises."""
    texts = literal_texts(ast.parse(file.read_text()))
    return [words for text in texts for words in find_commands(text) if words[0] in COMMANDS or words[0] in ("--help",)]


def refused(commands: list[list[str]], *, mentions: bool = False) -> list[str]:
    """Returns the commands that cannot be parsed; a mention in a sentence may lack arguments."""
    found = []
    for words in commands:
        try:
            parse_command(words)
        except cyclopts.MissingArgumentError:
            found += [] if mentions else [" ".join(words)]
        except cyclopts.CycloptsError:
            found.append(" ".join(words))
    return found


def test_every_command_in_a_text_of_the_source_can_be_called():
    files = sorted((ROOT / "src/headwater").rglob("*.py"))
    wrong = {str(file): refused(commands_of_source(file)) for file in files}
    assert {file: commands for file, commands in wrong.items() if commands} == {}


def split_command(text: str) -> list[str]:
    """Returns the words at the beginning of a text up to the end of the line, a pipe or a comment."""
    for end in [found.start() for found in re.finditer("\n|$", text)]:
        try:
            words = shlex.split(text[:end].replace("\\\n", " "), comments=True)
        except ValueError:  # a quote that ends on a later line
            continue
        stop = next((at for at, word in enumerate(words) if re.match(r"[|&;<>]|\d?>|…", word)), len(words))
        return [word.strip("[];,") for word in words[:stop]]
    return []


def commands_of_page(text: str) -> tuple[list[list[str]], list[list[str]]]:
    """Returns the commands in the code of a page, and those that its sentences mention; no lines of usage."""
    blocks = re.findall(r"^```.*?$(.*?)^```", text, re.MULTILINE | re.DOTALL)
    call = re.compile(r"^\s*(?:\$ )?(?:\w+=\S+ )*(?:\S*/)?headwater (?=\w)", re.MULTILINE)
    code = [split_command(block[found.end() :]) for block in blocks for found in call.finditer(block)]
    mentioned = [split_command(found) for found in re.findall(r"`headwater ([^`\n]+)(?<!\[OPTIONS\])`", text)]
    known = [[words for words in some if words and words[0] in COMMANDS] for some in (code, mentioned)]
    return known[0], known[1]


@pytest.mark.parametrize(
    "page", sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]), ids=lambda page: page.name
)
def test_every_command_of_the_docs_can_be_called(page):
    text = re.sub(
        r"\n## Twenty mistakes\n.*?(?=\n## |\n<!-- )", "", page.read_text(), flags=re.DOTALL
    )  # wrong on purpose
    code, mentioned = commands_of_page(text)
    assert refused(code) + refused(mentioned, mentions=True) == []
