"""Where a part of the system is: a URL, a folder or a word, whose secrets are named and not held.

`postgresql://shop:${SHOP_PASSWORD}@db/shop` refers to a variable of the environment, `${file:/run/db}` to a file.
References are looked up when the address is used, and what is printed of an address has `***` in place of a secret.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from headwater.errors import BadProfileError, MissingSecretError, Place

__all__ = ["Address", "redacted"]

_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_]\w*)")
_QUERY: Final = re.compile(r"\?(?=[\w.]+=)")
_PASSWORD: Final = re.compile(
    r"://[^:/@\s]*:(.*)@"
)  # up to the last @: a raw one in a password is hidden too
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
}  # fmt: skip
_FOLDERS: Final = ("log", "checkpoints")


def redacted(text: str) -> str:
    """A text in which `***` stands for the passwords of URLs, written out or referred to.

    Example:
        >>> redacted("postgresql://shop:tide@db/shop"), redacted("kafka://b:9092?sasl.password=tide")
        ('postgresql://shop:***@db/shop', 'kafka://b:9092?sasl.password=***')
    """
    for start, end in reversed(_secrets(text)):
        text = f"{text[:start]}***{text[end:]}"
    return text


@dataclass(frozen=True)
class Address:
    """One address of a profile; `str` and `repr` show no secret.

    Args:
        text: As it was written.
        kind: What is there: "log", "store", "queues", "spark" or "checkpoints".
        base: What a folder and a file that is referred to are relative to.
        place: Where it was written, for errors.

    Example:
        >>> address = Address("postgresql://shop:${SHOP_PASSWORD}@db/shop", "store")
        >>> print(address)
        postgresql://shop:***@db/shop
        >>> os.environ["SHOP_PASSWORD"] = "high tide"
        >>> address.resolved()
        'postgresql://shop:high%20tide@db/shop'
    """

    text: str = field(repr=False)
    kind: str
    base: Path = Path()
    place: Place | None = None

    def __str__(self) -> str:
        return redacted(self.text)

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    @property
    def scheme(self) -> str:
        """The part before `://`, such as "kafka"; empty for a folder or a word."""
        head, found, _ = self.resolved().partition("://")
        return head if found else ""

    def checked(self, *, plain_secrets: bool) -> Address:
        """The same address, known to have a form that its kind can have.

        Args:
            plain_secrets: Whether a password may be written out, as it may in the environment but not in a file.

        Raises:
            BadProfileError: It has not.
        """
        for start, end in [] if plain_secrets else _secrets(self.text):
            if start < end and not _REFERENCE.fullmatch(self.text, start, end):
                raise BadProfileError(
                    f"{self.kind} has a password written out: {self}",
                    detail="a file is copied and committed; it refers to a secret and does not hold it",
                    fix="${NAME} for a variable of the environment, or ${file:/path}",
                    place=self.place,
                    key=self.kind,
                )
        if not self.text.startswith("${"):  # otherwise its form is known when it is used
            self._check(_masked(self.text))
        return self

    def resolved(self) -> str:
        """The address with its references looked up now; values that stand in a URL are quoted for it.

        Raises:
            MissingSecretError: A variable is not set, or a file cannot be read.
            BadProfileError: What came out is no address of this kind.
        """
        masked = _masked(self.text)

        def value(found: re.Match[str]) -> str:
            plain = self._value(found[1])
            return quote(plain, safe="") if _quoted(masked, found.start()) else plain

        text = _REFERENCE.sub(value, self.text)
        self._check(text)
        if self.kind in _FOLDERS and "://" not in text:
            return str(self.base / Path(text).expanduser())
        return text

    def _value(self, reference: str) -> str:
        name = _VARIABLE.fullmatch(reference)
        if name and name[1] in os.environ:
            return os.environ[name[1]]
        if name:
            what, fix = f"which is not set, as {self.kind} needs it", f"export {name[1]}=…"
        elif reference.startswith("file:"):
            try:
                return (self.base / reference.removeprefix("file:")).read_text().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "not text"
                what, fix = f"which cannot be read: {reason}", f"write the secret of {self.kind} to that file"
        else:
            what, fix = "which is no reference", "${NAME} for a variable of the environment, or ${file:/path}"
        raise MissingSecretError(
            f"the profile refers to {reference}, {what}", fix=fix, place=self.place, reference=reference
        )

    def _check(self, text: str) -> None:
        pattern, forms = _FORMS[self.kind]
        authority = re.split(r"[/?]", text.partition("://")[2].rpartition("@")[2])[0]
        too_high = any(int(port) > 65535 for port in re.findall(r":(\d+)(?=,|$)", authority))
        if too_high or not re.fullmatch(pattern, text):
            what = f"{self.kind} is {str(self)!r}, which it cannot be"
            raise BadProfileError(what, fix=f"it can be {forms}", place=self.place, key=self.kind)


def _masked(text: str) -> str:
    """The text with its references as digits of the same length, so that they are hosts, ports and passwords."""
    return _REFERENCE.sub(lambda found: "0" * len(found[0]), text)


def _secrets(text: str) -> list[tuple[int, int]]:
    """Where in a text secrets stand, in order."""
    masked = _masked(text)
    query = _QUERY.search(masked)
    password = _PASSWORD.search(masked, 0, query.start() if query else len(masked))
    return [found.span(1) for found in [password, *_PARAMETER.finditer(masked)] if found]


def _quoted(masked: str, at: int) -> bool:
    """Whether a value that stands there is part of the user, the password or the query of a URL."""
    query = _QUERY.search(masked)
    end = query.start() if query else len(masked)
    return "://" in masked[:at] and (at < masked.rfind("@", 0, end) or at > end)
