"""How this process was called; completes the commands in the fix of an error, so that they run as printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headwater.errors import HeadwaterError

__all__ = ["FOLDER_COMMANDS", "PLACELESS_COMMANDS", "Invocation", "find_commands"]

PLACELESS_COMMANDS: Final = frozenset(["help", "prepare", "services", "cluster", "bench"])
"""Commands that read no log, so that neither --data nor --profile tells them anything."""
FOLDER_COMMANDS: Final = frozenset(["run", "dev", "plan", "demo", "doctor", "retry", "replay", "backfill", "verify"])
"""Commands that need the folder of a log; the URL of a node does not do."""
_APP_COMMANDS: Final = frozenset(["run", "dev", "plan"])
_COMMAND: Final = re.compile(r"(?<![\w./-])headwater(?P<words>(?: (?! )[^\s,;`()]+)+)")
"""A command in a text: it ends at a comma, a semicolon, a backtick, a parenthesis or two spaces."""
_PLACEHOLDERS: Final = ("app.py", "APP")
_OPTION: Final = re.compile(r"(?:add )?(?P<option>--[a-z-]+)(?:[ =](?P<value>[^\s,]+))?")
_NAME: Final = re.compile(r"[\w./-]+")


@dataclass(frozen=True)
class Invocation:
    """The arguments of a process, as far as commands in a fix depend on them.

    Attributes:
        app: The app file.
        data: The data folder or the URL of a node, if it was given.
        profile: The name of the profile, if it was given.
        words: The arguments after `headwater`; empty outside of the command line.
        program: The name or path by which Headwater was started.

    Example:
        >>> Invocation(app="shop.py", data="/srv/shop").complete("headwater run app.py --rebuild revenue")
        'headwater run shop.py --rebuild revenue --data /srv/shop'
    """

    app: str | None = None
    data: str | None = None
    profile: str | None = None
    words: tuple[str, ...] = ()
    program: str = "headwater"

    @classmethod
    def of_words(cls, words: Sequence[str]) -> Invocation:
        """Returns the invocation by the arguments of a command line.

        Example:
            >>> Invocation.of_words(["run", "shop.py", "--data=here"]).data
            'here'
        """
        given = list(words[: words.index("--")] if "--" in words else words)
        data, profile = _option_value(given, "--data"), _option_value(given, "--profile")
        app = next((word for word in given if word.endswith(".py")), None)
        return cls(app, data, profile, tuple(words) if len(given) == len(words) else (), program())

    def complete_error(self, error: HeadwaterError) -> None:
        """Complete the commands in the fix of an error."""
        if error.fix:
            error.fix = self._call_again(error.fix, list(error.data.values())) or self.complete(error.fix)

    def complete(self, text: str) -> str:
        """Returns a text in which every command has the app file, the data folder and the profile that were given."""
        return _COMMAND.sub(lambda found: self._complete_command(found["words"].split()), text)

    def _complete_command(self, words: list[str]) -> str:
        name = words[0]
        if name in _APP_COMMANDS and self.app is not None:
            words = [shlex.quote(self.app) if word in _PLACEHOLDERS else word for word in words]
            if not any(word == shlex.quote(self.app) or word.endswith(".py") for word in words):
                words.insert(1, shlex.quote(self.app))
        if not (name.startswith("-") or name in PLACELESS_COMMANDS):
            usable = self.data is not None and not ("://" in self.data and name in FOLDER_COMMANDS)
            for option, value in (("--data", self.data if usable else None), ("--profile", self.profile)):
                if value is not None and _option_value(words, option) is None:
                    words += [option, shlex.quote(value)]
        return " ".join([shlex.quote(self.program), *words])

    def _call_again(self, fix: str, values: list[object]) -> str | None:
        """Returns the command that was called, with the one option or name of the fix in it; None for another fix."""
        words = list(self.words)
        if option := _OPTION.fullmatch(fix):
            words = _set_option(words, option["option"], option["value"])
        elif _NAME.fullmatch(fix):
            words = _replace_word(words, fix, values)
        else:
            return None
        return shlex.join([self.program, *words]) if words else None


def find_commands(text: str) -> list[list[str]]:
    """Returns the commands in a text, each as its words after `headwater`.

    Example:
        >>> find_commands("headwater run app.py, then try again")
        [['run', 'app.py']]
    """
    return [shlex.split(found["words"]) for found in _COMMAND.finditer(text)]


def program() -> str:
    """Returns the word that starts Headwater in this shell: its name if that is on the path, else its file."""
    name = "headwater"
    called = Path(sys.argv[0])
    if called.name not in (name, "hw") or shutil.which(name) is not None or not called.is_file():
        return name
    beside = os.path.relpath(called)
    return str(called.absolute()) if beside.startswith("..") else beside


def _option_value(words: Sequence[str], option: str) -> str | None:
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _set_option(words: list[str], option: str, value: str | None) -> list[str]:
    """Returns the words with an option set; empty if it was given several times."""
    given = [number for number, word in enumerate(words) if word.partition("=")[0] == option]
    if len(given) > 1 or not words:
        return []
    setting = [option] if value is None else [option, value]
    if not given:
        return [*words, *setting]
    length = 1 if "=" in words[given[0]] or value is None else 2
    return [*words[: given[0]], *setting, *words[given[0] + length :]]


def _replace_word(words: list[str], name: str, values: list[object]) -> list[str]:
    """Returns the words with the only one that an error names replaced; empty if there is no such word.

    An argument that has the name once, as a query or an event does, counts as such a word.
    """
    wrong = [number for number, word in enumerate(words) if number and word in values]
    if len(wrong) == 1:
        return [*words[: wrong[0]], name, *words[wrong[0] + 1 :]]
    names = [re.escape(value) for value in values if isinstance(value, str) and _NAME.fullmatch(value)]
    inside = re.compile(rf"(?<![\w.])(?:{'|'.join(names)})(?![\w.])")
    wrong = [number for number, word in enumerate(words) if number and names and inside.search(word)]
    if len(wrong) != 1 or len(inside.findall(words[wrong[0]])) != 1:
        return []
    return [*words[: wrong[0]], inside.sub(name, words[wrong[0]]), *words[wrong[0] + 1 :]]
