"""Profiles: where log, store, queues and Spark are, by name, so that an app file runs on a laptop and on a cluster.

A profile is a table `[profiles.NAME]` of headwater.toml, or `[tool.headwater.profiles.NAME]` of pyproject.toml, in the
current folder or one above it. `HEADWATER_LOG`, `HEADWATER_STORE`, `HEADWATER_QUEUES`, `HEADWATER_SPARK` and
`HEADWATER_CHECKPOINTS` count more than the file. Without a name nothing is read: log, store and queues are in the data
folder, and Spark is in this machine.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from headwater.address import Address
from headwater.config import ADDRESSES, DATA, JARS, PROFILE, SPARK
from headwater.errors import BadProfileError, Place, UnknownProfileError

__all__ = ["ARCHIVES", "Profile", "describe", "read_profile"]

_PLAIN: Final = ("python", "jars")
_KEYS: Final = (*(setting.name for setting in ADDRESSES), *_PLAIN)
ARCHIVES: Final = (".tar.gz", ".tgz", ".zip")
"""How the name of an archive ends that Spark unpacks on its workers."""
_LOCAL_SPARK: Final = Address(SPARK.default, "spark")


@dataclass(frozen=True)
class Profile:
    """Where the parts are. An address gives its text, secrets included, with `resolved()`, and nothing of them else.

    Args:
        name: "embedded" for the one that needs no file.
        log: A folder or `kafka://…`; None is the data folder.
        store: `postgresql://…`; None is SQLite in the data folder.
        queues: `amqp://…`; None is SQLite in the data folder.
        spark: Spark's master.
        checkpoints: A folder or URL that driver and workers reach; None is the data folder.
        python: The Python of Spark's workers, or an archive with one; None is this one.
        jars: A folder with the jars of Spark's Kafka connector; None fetches them when they are needed.
        place: Where it was written.

    Example:
        >>> Profile("embedded").data_folder("shop-data")
        'shop-data'
    """

    name: str
    log: Address | None = None
    store: Address | None = None
    queues: Address | None = None
    spark: Address = _LOCAL_SPARK
    checkpoints: Address | None = None
    python: str | None = None
    jars: str | None = None
    place: Place | None = None

    @property
    def kafka(self) -> bool:
        """Whether the log is a Kafka rather than a folder."""
        return self.log is not None and self.log.scheme == "kafka"

    def data_folder(self, given: object = None) -> str:
        """The data folder: the one given, else the log's if it is a folder, else that of the settings.

        With the log on Kafka, it still has what belongs to this machine: node.json, and checkpoints by default.
        """
        if given in (None, "") and self.log is not None and not self.kafka:
            return self.log.resolved()
        return DATA.read(given)


class _File(NamedTuple):
    """A file with profiles."""

    path: Path
    text: str
    tables: dict[str, Any]

    def place(self, profile: str, key: str = "") -> Place:
        """The line of a profile's table, or of a key in it. The line is not quoted: it may hold a secret."""
        lines = self.text.splitlines()
        name = rf"""["']?{re.escape(profile)}["']?"""
        header = _first(lines, rf"\s*\[\s*(tool\.headwater\.)?profiles\.{name}\s*\]")
        within = _first(lines, rf"\s*{re.escape(key)}\s*=", header) if key else header
        return Place.near(str(self.path), (within or header) + 1)


def read_profile(name: str | None = None, start: Path | None = None) -> Profile:
    """The profile of a name, from the nearest file that has profiles.

    Args:
        name: Which one [default: HEADWATER_PROFILE, else embedded].
        start: The folder where the search upwards begins; the current one if left out.

    Raises:
        UnknownProfileError: There is none of that name.
        BadProfileError: The file is not TOML, a key is unknown, an address is malformed or has a password in it.

    Example:
        >>> read_profile().spark
        Address('local[*]')
    """
    chosen = PROFILE.read(name)
    values: dict[str, Any] = {}
    if chosen != PROFILE.default:
        values = _from_file(chosen, (start or Path()).resolve())
    for setting in ADDRESSES:
        if text := os.environ.get(setting.variable):
            values[setting.name] = Address(text, setting.name).checked(plain_secrets=True)
    values["jars"] = JARS.read() or values.get("jars")
    return Profile(chosen, **values)


def describe(profile: Profile, data: str | None = None) -> list[str]:
    """Where log, store, queues and Spark are, in lines that show no secret; nothing is looked up or opened.

    Example:
        >>> describe(Profile("embedded"), "shop-data")[:2]
        ['profile      embedded', 'log          the data folder, shop-data']
    """
    named = profile.log if profile.log and "://" not in profile.log.text else None
    folder = f"the data folder, {DATA.read(data or named)}"
    facts = {
        "profile": f"{profile.name}   {profile.place}" if profile.place else profile.name,
        "log": profile.log or folder,
        "store": profile.store or f"SQLite in {folder}",
        "queues": profile.queues,
        "spark": profile.spark,
        "checkpoints": profile.checkpoints or folder,
        "python": profile.python,
        "jars": profile.jars,
    }
    return [f"{part:12} {fact}" for part, fact in facts.items() if fact is not None]


def _from_file(name: str, start: Path) -> dict[str, Any]:
    file = _nearest(start)
    if file is None:
        raise UnknownProfileError(
            f'no profile "{name}"',
            detail=f"there is no headwater.toml in {start} or above, and no [tool.headwater] in a pyproject.toml",
            fix=f"write a table [profiles.{name}] to headwater.toml",
            profile=name,
        )
    table = file.tables.get(name)
    if table is None:
        near = difflib.get_close_matches(name, file.tables, n=1)
        raise UnknownProfileError(
            f'no profile "{name}" in {file.path}',
            detail=f"profiles: {', '.join(file.tables) or 'none'}",
            fix=f"--profile {near[0]}" if near else f"write a table [profiles.{name}]",
            profile=name,
        )
    return {key: _value(file, name, key, table[key]) for key in table} | {"place": file.place(name)}


def _value(file: _File, profile: str, key: str, value: Any) -> Address | str:
    place = file.place(profile, key)
    if key not in _KEYS:
        near = difflib.get_close_matches(key, _KEYS, n=1)
        what = f'the profile "{profile}" has no key "{key}"'
        known = f"keys: {', '.join(_KEYS)}"
        raise BadProfileError(
            what, detail=known, fix=near[0] if near else "leave it out", place=place, key=key
        )
    if not isinstance(value, str) or not value:
        what = f'"{key}" of the profile "{profile}" is not a text'
        raise BadProfileError(what, fix=f'{key} = "…"', place=place, key=key)
    if key == "jars":
        return str(file.path.parent / Path(value).expanduser())
    if key == "python":
        return str(file.path.parent / value) if value.endswith(ARCHIVES) and "://" not in value else value
    return Address(value, key, file.path.parent, place).checked(plain_secrets=False)


def _nearest(start: Path) -> _File | None:
    for folder in (start, *start.parents):
        for name in ("headwater.toml", "pyproject.toml"):
            path = folder / name
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                found = _parsed(path, text)
                if found is not None:
                    return _File(path, text, _tables(path, found))
    return None


def _parsed(path: Path, text: str) -> Any:
    """The part of a file that is ours; None for a pyproject.toml that has no such part."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        place = Place.near(str(path), int(line[1]) if line else len(text.splitlines()))
        what = f"{path.name} is not TOML: {error}"
        raise BadProfileError(what, fix="correct that line", place=place) from None
    return document.get("tool", {}).get("headwater") if path.name == "pyproject.toml" else document


def _tables(path: Path, found: Any) -> dict[str, Any]:
    """The profiles by name."""
    document = found if isinstance(found, dict) else {"headwater": found}
    profiles = document.get("profiles", {})
    tables = profiles if isinstance(profiles, dict) else {"profiles": profiles}
    wrong = [key for key in document if key != "profiles"]
    wrong += [name for name, table in tables.items() if not isinstance(table, dict)]
    if wrong:
        what = f'{path.name} has "{wrong[0]}" where only tables [profiles.NAME] can be'
    elif PROFILE.default in tables:
        what = f'{path.name} declares the profile "{PROFILE.default}", which is the one that needs no file'
    else:
        return tables
    place = Place.near(str(path), 1)
    raise BadProfileError(what, fix='[profiles.prod] and below it log = "…"', place=place)


def _first(lines: list[str], pattern: str, start: int = 0) -> int:
    """The number of the first line that fits, from `start` on; `start` when none does."""
    return next((n for n in range(start, len(lines)) if re.match(pattern, lines[n])), start)
