"""Profiles: named addresses of log, store, queues and Spark, so one app file runs on a laptop and a cluster.

A profile is a table `[profiles.NAME]` of headwater.toml, or `[tool.headwater.profiles.NAME]` of
pyproject.toml, in the current folder or one above it. `HEADWATER_LOG`, `HEADWATER_STORE`,
`HEADWATER_QUEUES`, `HEADWATER_SPARK` and `HEADWATER_CHECKPOINTS` override the file. Without a profile name
no file is read: log, store and queues are in the data folder, and Spark runs on this machine.

An address is a URL, a folder or a word. It names its secrets and does not hold them:
`postgresql://shop:${SHOP_PASSWORD}@db/shop` refers to an environment variable, `${file:/run/db}` to a file.
References are resolved when the address is used. Printed addresses have `***` in place of a secret.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from headwater.config import ADDRESSES, DATA, JARS, PROFILE, SPARK
from headwater.errors import BadProfileError, MissingSecretError, SourceLocation, UnknownProfileError, near_names

__all__ = ["ARCHIVE_SUFFIXES", "Address", "Profile", "describe", "read_profile", "redact"]

_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_]\w*)")
_QUERY: Final = re.compile(r"\?(?=[\w.]+=)")
_PASSWORD: Final = re.compile(r"://[^:/@\s]*:(.*)@")  # up to the last @: a raw one in a password is hidden too
_PARAMETER: Final = re.compile(r"[?&][\w.]*(?:pass|secret|token|key)[\w.]*=([^&\s]*)", re.IGNORECASE)

_HOSTS: Final = r"(?:{0})(?:,(?:{0}))*".format(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/@?#,\[\]]+)(?::\d+)?")
_USER: Final = r"(?:[^\s/?]*@)?"
_FORMS: Final = {
    "log": (rf"(?!.*://).+|kafka://{_USER}{_HOSTS}/?(?:\?\S*)?", "a folder, or kafka://host:9092,host:9092"),
    "store": (
        rf"postgresql://{_USER}(?:{_HOSTS})?(?:/[^\s/?]*)?(?:\?\S*)?",
        "postgresql://user:${PASSWORD}@host:5432/database, or nothing for SQLite",
    ),
    "queues": (
        rf"amqps?://{_USER}{_HOSTS}(?:/[^\s/?]*)?(?:\?\S*)?",
        "amqp://user:${PASSWORD}@host:5672, or nothing for the data folder",
    ),
    "spark": (
        rf"local(?:\[(?:\*|\d+)(?:, ?\d+)?\])?|spark://{_HOSTS}|k8s://\S+|yarn",
        "local[*], spark://host:7077, k8s://https://host:port or yarn",
    ),
    "checkpoints": (r"(?!.*://).+|[a-z][a-z0-9+.-]*://\S*", "a folder, or a URL such as s3a://bucket/checkpoints"),
    "captures": (
        rf"(?:postgresql|postgres|mariadb|mysql)://{_USER}(?:{_HOSTS})?(?:/[^\s?]*)?(?:\?\S*)?|sqlite://\S+|(?!.*://).+",
        "postgresql://user:${PASSWORD}@host:5432/database, mariadb://…, or the path of an SQLite file",
    ),
}  # fmt: skip
_FOLDERS: Final = ("log", "checkpoints")


def redact(text: str) -> str:
    """Returns a text in which `***` stands for the passwords of URLs, written out or referred to.

    Example:
        >>> redact("postgresql://shop:tide@db/shop"), redact("kafka://b:9092?sasl.password=tide")
        ('postgresql://shop:***@db/shop', 'kafka://b:9092?sasl.password=***')
    """
    for start, end in reversed(_secret_spans(text)):  # from the end: earlier positions stay valid
        text = f"{text[:start]}***{text[end:]}"
    return text


@dataclass(frozen=True)
class Address:
    """One address of a profile; `str` and `repr` show no secret.

    Args:
        text: The text of the address, with references.
        kind: "log", "store", "queues", "spark", "checkpoints" or "captures".
        base: The folder to which relative paths refer.
        location: Where the user wrote it.

    Example:
        >>> address = Address("postgresql://shop:${SHOP_PASSWORD}@db/shop", "store")
        >>> print(address)
        postgresql://shop:***@db/shop
        >>> os.environ["SHOP_PASSWORD"] = "high tide"
        >>> address.resolve()
        'postgresql://shop:high%20tide@db/shop'
    """

    text: str = field(repr=False)
    kind: str
    base: Path = Path()
    location: SourceLocation | None = None

    def __str__(self) -> str:
        return redact(self.text)

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    @property
    def scheme(self) -> str:
        """The part before `://`, such as "kafka"; empty for a folder or a word."""
        head, found, _ = self.resolve().partition("://")
        return head if found else ""

    def validate(self, *, plain_secrets: bool) -> Address:
        """Check the form of the address and return it.

        Args:
            plain_secrets: Whether a plain password is allowed, as in the environment, but not in a file.

        Raises:
            BadProfileError: The form is not one of its kind, or it contains a plain password.
        """
        for start, end in [] if plain_secrets else _secret_spans(self.text):
            if start < end and not _REFERENCE.fullmatch(self.text, start, end):
                raise BadProfileError(
                    f"{self.kind} contains a plain password: {self}",
                    detail="files are copied and committed: write a reference in place of the password",
                    fix="${NAME} for a variable of the environment, or ${file:/path}",
                    location=self.location,
                    key=self.kind,
                )
        if not self.text.startswith("${"):  # otherwise `resolve` checks the form
            self._check_form(_mask_references(self.text))
        return self

    def resolve(self) -> str:
        """Returns the address with its references resolved now; values in a URL are percent-encoded.

        Raises:
            MissingSecretError: A variable is not set, or a file cannot be read.
            BadProfileError: The result is not an address of this kind.
        """
        masked = _mask_references(self.text)

        def value(found: re.Match[str]) -> str:
            plain = self._look_up(found[1])
            return quote(plain, safe="") if _needs_quoting(masked, found.start()) else plain

        text = _REFERENCE.sub(value, self.text)
        self._check_form(text)
        if self.kind in (*_FOLDERS, "captures") and "://" not in text:
            return str(self.base / Path(text).expanduser())
        return text

    def _look_up(self, reference: str) -> str:
        name = _VARIABLE.fullmatch(reference)
        if name and name[1] in os.environ:
            return os.environ[name[1]]
        if name:
            what, fix = "which is not set", f"export {name[1]}=…"
        elif reference.startswith("file:"):
            try:
                return (self.base / reference.removeprefix("file:")).read_text().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "not text"
                what, fix = f"which cannot be read: {reason}", "write the secret to that file"
        else:
            what, fix = "which is not a reference", "${NAME} for a variable of the environment, or ${file:/path}"
        raise MissingSecretError(
            f"{self.kind} refers to {reference}, {what}", fix=fix, location=self.location, reference=reference
        )

    def _check_form(self, text: str) -> None:
        pattern, forms = _FORMS[self.kind]
        authority = re.split(r"[/?]", text.partition("://")[2].rpartition("@")[2])[0]
        too_high = any(int(port) > 65535 for port in re.findall(r":(\d+)(?=,|$)", authority))
        if too_high or not re.fullmatch(pattern, text):
            what = f"{self.kind} is {str(self)!r}, which is not a valid address"
            raise BadProfileError(what, fix=f"it can be {forms}", location=self.location, key=self.kind)


def _mask_references(text: str) -> str:
    """Returns the text with each reference as zeros of the same length, which are valid in any part of a URL."""
    return _REFERENCE.sub(lambda found: "0" * len(found[0]), text)


def _secret_spans(text: str) -> list[tuple[int, int]]:
    """Returns the spans of the secrets in a text, in order."""
    masked = _mask_references(text)
    query = _QUERY.search(masked)
    password = _PASSWORD.search(masked, 0, query.start() if query else len(masked))
    return [found.span(1) for found in [password, *_PARAMETER.finditer(masked)] if found]


def _needs_quoting(masked: str, at: int) -> bool:
    """Whether a position is in the user, the password or the query of a URL."""
    query = _QUERY.search(masked)
    end = query.start() if query else len(masked)
    return "://" in masked[:at] and (at < masked.rfind("@", 0, end) or at > end)


_TEXT_KEYS: Final = ("python", "jars")
_KEYS: Final = (*(setting.name for setting in ADDRESSES), *_TEXT_KEYS)
ARCHIVE_SUFFIXES: Final = (".tar.gz", ".tgz", ".zip")
"""The suffixes of archives that Spark unpacks on its workers."""
_CAPTURES: Final = "captures"
_LOCAL_SPARK: Final = Address(SPARK.default, "spark")


@dataclass(frozen=True)
class Profile:
    """The addresses of log, store, queues and Spark. Only `Address.resolve` returns secrets.

    Args:
        name: The name; "embedded" is the profile without a file.
        log: A folder or `kafka://…`; None is the data folder.
        store: `postgresql://…`; None is SQLite in the data folder.
        queues: `amqp://…`; None is SQLite in the data folder.
        spark: Spark's master.
        checkpoints: A folder or URL that driver and workers reach; None is the data folder.
        python: The Python of Spark's workers, or an archive with one; None is the running one.
        jars: A folder with the jars of Spark's Kafka connector; None downloads them when needed.
        captures: The databases to capture, by the name that `hw.capture` gives them.
        location: Where the user wrote it.

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
    captures: Mapping[str, Address] = field(default_factory=dict)
    location: SourceLocation | None = None

    @property
    def kafka(self) -> bool:
        """Whether the log is on Kafka."""
        return self.log is not None and self.log.scheme == "kafka"

    def data_folder(self, given: object = None) -> str:
        """Returns the data folder: the given one, else the log if it is a folder, else the setting `data`.

        With the log on Kafka it still holds the files of this machine: the engine's, and checkpoints by default.
        """
        if given in (None, "") and self.log is not None and not self.kafka:
            return self.log.resolve()
        return DATA.read(given)


class _ProfileFile(NamedTuple):
    """A file with profiles."""

    path: Path
    text: str
    tables: dict[str, Any]

    def location(self, profile: str, key: str = "") -> SourceLocation:
        """Returns the line of a profile's table, or of a key in it, without its text, which may contain a secret."""
        lines = self.text.splitlines()
        name = rf"""["']?{re.escape(profile)}["']?"""
        header = _first_match(lines, rf"\s*\[\s*(tool\.headwater\.)?profiles\.{name}\s*\]")
        within = _first_match(lines, rf"\s*{re.escape(key)}\s*=", header) if key else header
        return SourceLocation.at(str(self.path), (within or header) + 1)


def read_profile(name: str | None = None, start: Path | None = None) -> Profile:
    """Returns a profile from the nearest file with profiles.

    Args:
        name: The name [default: HEADWATER_PROFILE, else embedded].
        start: The folder where the search upwards starts; by default the current one.

    Raises:
        UnknownProfileError: No profile has this name.
        BadProfileError: The file is not TOML, a key is unknown, or an address is malformed or contains a password.

    Example:
        >>> read_profile().spark
        Address('local[*]')
    """
    chosen = PROFILE.read(name)
    values: dict[str, Any] = {}
    if chosen != PROFILE.default:
        values = _read_from_file(chosen, (start or Path()).resolve())
    for setting in ADDRESSES:
        if text := os.environ.get(setting.variable):
            values[setting.name] = Address(text, setting.name).validate(plain_secrets=True)
    values["jars"] = JARS.read() or values.get("jars")
    return Profile(chosen, **values)


def describe(profile: Profile, data: str | None = None) -> list[str]:
    """Returns the addresses of a profile as lines without secrets; nothing is resolved or opened.

    Example:
        >>> describe(Profile("embedded"), "shop-data")[:2]
        ['profile      embedded', 'log          the data folder, shop-data']
    """
    named = profile.log if profile.log and "://" not in profile.log.text else None
    folder = f"the data folder, {DATA.read(data or named)}"
    facts = {
        "profile": f"{profile.name}   {profile.location}" if profile.location else profile.name,
        "log": profile.log or folder,
        "store": profile.store or f"SQLite in {folder}",
        "queues": profile.queues,
        "spark": profile.spark,
        "checkpoints": profile.checkpoints or folder,
        "captures": ", ".join(f"{name} {url}" for name, url in profile.captures.items()) or None,
        "python": profile.python,
        "jars": profile.jars,
        "page": "none, and no HTTP: the log is on Kafka; headwater view, lag and status read it"
        if profile.kafka
        else None,
    }
    return [f"{part:12} {fact}" for part, fact in facts.items() if fact is not None]


def _read_from_file(name: str, start: Path) -> dict[str, Any]:
    file = _find_file(start)
    if file is None:
        raise UnknownProfileError(
            f'no profile "{name}"',
            detail=f"there is no headwater.toml in {start} or above, and no [tool.headwater] in a pyproject.toml",
            fix=f"write a table [profiles.{name}] to headwater.toml",
            profile=name,
        )
    table = file.tables.get(name)
    if table is None:
        near = near_names(name, file.tables)
        raise UnknownProfileError(
            f'no profile "{name}" in {file.path}',
            detail=f"profiles: {', '.join(file.tables) or 'none'}",
            fix=f"--profile {near[0]}" if near else f"write a table [profiles.{name}]",
            profile=name,
        )
    addresses = _parse_captures(file, name, table.get(_CAPTURES, {}))
    values = {key: _parse_value(file, name, key, table[key]) for key in table if key != _CAPTURES}
    return {**values, _CAPTURES: addresses, "location": file.location(name)}


def _parse_captures(file: _ProfileFile, profile: str, table: Any) -> dict[str, Address]:
    """Returns the addresses of `[profiles.NAME.captures]`."""
    location = file.location(f"{profile}.{_CAPTURES}")
    if not isinstance(table, dict) or not all(isinstance(url, str) and url for url in table.values()):
        what = f'"{_CAPTURES}" of the profile "{profile}" is not a table of addresses'
        raise BadProfileError(what, fix='[profiles.NAME.captures] and below it shop = "…"', location=location)
    return {
        name: Address(url, _CAPTURES, file.path.parent, location).validate(plain_secrets=False)
        for name, url in table.items()
    }


def _parse_value(file: _ProfileFile, profile: str, key: str, value: Any) -> Address | str:
    location = file.location(profile, key)
    if key not in _KEYS:
        near = near_names(key, _KEYS)
        what = f'the profile "{profile}" has no key "{key}"'
        known = f"keys: {', '.join((*_KEYS, _CAPTURES))}"
        raise BadProfileError(what, detail=known, fix=near[0] if near else "leave it out", location=location, key=key)
    if not isinstance(value, str) or not value:
        what = f'"{key}" of the profile "{profile}" is not text, or is empty'
        raise BadProfileError(what, fix=f'{key} = "…"', location=location, key=key)
    if key == "jars":
        return str(file.path.parent / Path(value).expanduser())
    if key == "python":
        return str(file.path.parent / value) if value.endswith(ARCHIVE_SUFFIXES) and "://" not in value else value
    return Address(value, key, file.path.parent, location).validate(plain_secrets=False)


def _find_file(start: Path) -> _ProfileFile | None:
    paths = [folder / name for folder in (start, *start.parents) for name in ("headwater.toml", "pyproject.toml")]
    for path in filter(Path.is_file, paths):
        text = path.read_text(encoding="utf-8")
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"at line (\d+)", str(error))
            location = SourceLocation.at(str(path), int(line[1]) if line else len(text.splitlines()))
            what = f"{path.name} is not TOML: {error}"
            raise BadProfileError(what, fix="correct that line", location=location) from None
        found = document.get("tool", {}).get("headwater") if path.name == "pyproject.toml" else document
        if found is not None:  # a pyproject.toml without our table does not end the search
            return _ProfileFile(path, text, _profile_tables(path, found))
    return None


def _profile_tables(path: Path, found: Any) -> dict[str, Any]:
    document = found if isinstance(found, dict) else {"headwater": found}
    profiles = document.get("profiles", {})
    tables = profiles if isinstance(profiles, dict) else {"profiles": profiles}
    wrong = [key for key in document if key != "profiles"]
    wrong += [name for name, table in tables.items() if not isinstance(table, dict)]
    if wrong:
        what = f'{path.name} has "{wrong[0]}" where only tables [profiles.NAME] are allowed'
    elif PROFILE.default in tables:
        what = f'{path.name} declares the profile "{PROFILE.default}", which is reserved for the profile without a file'
    else:
        return tables
    location = SourceLocation.at(str(path), 1)
    raise BadProfileError(what, fix='[profiles.prod] and below it log = "…"', location=location)


def _first_match(lines: list[str], pattern: str, start: int = 0) -> int:
    """Returns the index of the first matching line from `start`; `start` if none matches."""
    return next((n for n in range(start, len(lines)) if re.match(pattern, lines[n])), start)
