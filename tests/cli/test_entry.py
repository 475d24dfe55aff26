"""The entry point: help without heavy imports, errors of wrong usage, exit codes, pipes that close early."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys

import pytest

from headwater.cli import entry
from headwater.cli.catalogue import COMMANDS, GROUPS
from headwater.errors import by_code
from tests.cli.conftest import COMMAND

HEAVY = {
    "cyclopts", "duckdb", "fastapi", "httpx", "msgspec", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "rich",
    "starlette", "uvicorn",
}  # fmt: skip
COUNT_MODULES = """
import json, sys
before = set(sys.modules)
from headwater.cli import main
code = main({words})
print(json.dumps([code, sorted(set(sys.modules) - before)]))
"""


def modules_of(environment, *words: str) -> tuple[int, list[str]]:
    """Returns the exit code of a command and the modules that it loads in a new process."""
    program = COUNT_MODULES.format(words=list(words))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    code, names = json.loads(done.stdout.splitlines()[-1])
    return code, names


@pytest.mark.parametrize("words", [["--help"], ["-h"], [], ["--json", "--help"]])
def test_help_loads_nothing_heavy(environment, words):
    code, names = modules_of(environment, *words)
    assert code == 0
    assert not HEAVY & {name.partition(".")[0] for name in names}
    assert len(names) < 20


def test_help_lists_every_command_in_its_group(call):
    done = call("--help", where=None)
    assert done.code == 0
    listed = re.findall(r"^  (\w+) +\S", done.out, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert {verb.group for verb in COMMANDS.values()} == set(GROUPS)


@pytest.mark.parametrize("verb", COMMANDS.values(), ids=lambda verb: verb.name)
def test_the_listed_summary_is_the_commands_own(verb):
    function = getattr(importlib.import_module(verb.module), verb.function)
    assert (inspect.getdoc(function) or "").splitlines()[0] == verb.summary


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_explains_its_options(call, verb):
    done = call(verb, "--help", where=None)
    assert done.code == 0
    assert f"Usage: headwater {verb}" in done.out
    for option in ("--data", "--profile", "--json", "--plain", "--trace"):
        assert option in done.out


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_option_of_a_command_has_a_word_of_help(call, verb):
    text = call(verb, "--help", where=None).out
    assert re.findall(r"^  (?:-|[A-Z]{2})[^:\n]*$", text, re.MULTILINE) == []


def test_the_version_is_that_of_the_package(shell):
    done = shell("--version")
    assert (done.code, done.out) == (0, "headwater 0.1.0\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tpics"], "headwater topics"),
        (["--bogus"], "--bogus"),
        (["topics", "--bogus"], "--bogus"),
        (["send"], "TOPIC"),
        (["cat", "notes", "--limit", "many"], "many"),
        (["bench", "everything"], "everything"),
        (["reset", "billing"], "--topic"),
    ],
)
def test_wrong_usage_is_exit_code_2_in_our_form(call, words, said):
    done = call(*words)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error BAD_USAGE: ")
    assert said in done.err
    assert "fix: headwater" in done.err


def test_options_of_every_command_may_stand_before_the_verb(call, data):
    before = call("--json", "topics", where=data)
    behind = call("topics", "--json", where=data)
    assert before.out == behind.out
    assert [row["topic"] for row in before.rows] == ["notes", "notes_copy", "orders", "orders_copy"]


def test_an_error_with_json_is_a_problem_document(call, log):
    done = call("topics", "nope", "--json")
    assert done.code == 2
    assert done.problem["code"] == "UNKNOWN_TOPIC"
    assert done.problem["status"] == 404
    assert done.problem["data"] == {"topic": "nope"}


def test_a_traceback_is_shown_only_when_asked_for(call, log):
    assert "Traceback" not in call("topics", "nope").err
    shown = call("topics", "nope", "--trace").err
    assert "Traceback" in shown
    assert shown.splitlines()[-3].startswith("error UNKNOWN_TOPIC")


def test_an_unexpected_error_is_reported_as_a_bug(call, monkeypatch):
    def broken(*_: object) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(entry, "_dispatch", broken)
    done = call("topics")
    assert done.code == 1
    assert done.err.startswith("error ERROR: unexpected ZeroDivisionError: division by zero")


def test_an_interrupt_is_exit_code_130(call, monkeypatch):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "_dispatch", interrupted)
    assert call("topics").code == 130


@pytest.mark.parametrize("code", sorted(by_code()))
def test_every_error_code_is_explained(call, code):
    done = call("help", code, where=None)
    meaning = inspect.cleandoc(by_code()[code].__doc__ or "").splitlines()[0]
    assert done.code == 0
    assert done.out.splitlines()[:2] == [code, f"  {meaning}"]
    assert call("help", code, "--json", where=None).rows[0]["exit_code"] == by_code()[code].exit_code


def test_an_unknown_code_names_near_ones(call):
    done = call("help", "DISK_FUL", where=None)
    assert done.code == 2
    assert done.err.startswith("error UNKNOWN_CODE")
    assert "DISK_FULL" in done.err


def test_help_without_a_code_lists_them_all(call):
    rows = call("help", "--json", where=None).rows
    assert [row["code"] for row in rows] == sorted(by_code())


def test_help_of_a_command_is_its_own_help(call):
    assert call("help", "send", where=None).out == call("send", "--help", where=None).out


def test_a_folder_without_a_log_is_an_error_and_is_not_created(call, tmp_path):
    for words in (["topics"], ["cat", "a"], ["send", "a", "{}"], ["lag"], ["verify"], ["status"]):
        done = call(*words, where=str(tmp_path / "nothing"))
        assert done.code == 5, words
        assert done.err.startswith("error DATA: ")
    assert not (tmp_path / "nothing").exists()


def test_a_log_of_a_newer_version_is_not_touched(call, data, log, tmp_path):
    log.close()
    (tmp_path / "data" / "log.json").write_text('{"format": 999, "id": "x"}')
    for words in (["topics"], ["send", "notes", '{"text": "a"}'], ["cat", "notes"], ["verify"], ["run", "--port", "0"]):
        done = call(*words)
        assert done.code == 5, words
        assert done.err.startswith("error NEWER_FORMAT"), words
    assert (tmp_path / "data" / "log.json").read_text() == '{"format": 999, "id": "x"}'


def test_a_folder_that_cannot_be_written_is_exit_code_3(call, tmp_path):
    (tmp_path / "file").write_text("")
    done = call("run", "--port", "0", where=str(tmp_path / "file" / "data"))
    assert done.code == 3
    assert done.err.startswith("error NOT_WRITABLE")


def test_an_address_where_nothing_listens_is_exit_code_3(call):
    done = call("topics", where="http://127.0.0.1:1")
    assert done.code == 3
    assert done.err.startswith("error UNREACHABLE")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_is_no_error(log, data, environment, unbuffered):
    log.send_many("notes", [{"text": "x" * 1000}] * 2000)
    with subprocess.Popen(
        [COMMAND, "cat", "notes", "--data", data],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | {"PYTHONUNBUFFERED": unbuffered},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.parametrize("words", [["cat", "\x1b[31m"], ["\x9b31m"], ["send", "notes", '{"\x1b]0;t\x07": "\x9b"}']])
def test_an_error_escapes_what_was_typed(call, log, words):
    for form in ([], ["--json"]):
        done = call(*words, *form)
        assert done.code == 2
        assert re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.err) == []
