"""The folder of one query: what it was made from, where it began, its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from headwater.store import Aside

__all__ = ["Home", "Made"]


class Made(msgspec.Struct, frozen=True):
    """What a query was made from, to be compared with what the app says now.

    `facts` are the pipeline's own (see `Pipeline.facts`), `state` is what its state looks like to Spark, `schema` its
    columns as DDL, `rows` how they behave (see `Rows`), `starts` where it began to read each input, `incarnations`
    which topic it found under the name of each (see `TimedLog.incarnation`).
    """

    facts: dict[str, str]
    state: str
    schema: str
    mode: str
    rows: str
    starts: dict[str, dict[int, int]]
    incarnations: dict[str, str] = {}


class Home:
    """`engine/NAME/VERSION` below the data folder; what workers must reach is below `shared`, if there is one.

    Example:
        >>> import tempfile
        >>> home = Home(Path(tempfile.mkdtemp()), "revenue", 1)
        >>> home.query, home.made() is None
        ('revenue@1', True)
    """

    def __init__(self, data: Path, name: str, version: int, shared: Path | None = None) -> None:
        self.query = f"{name}@{version}"
        self.folder = data / "engine" / name / str(version)
        reached = self.folder if shared is None else shared / name / str(version)
        self.checkpoint = reached / "checkpoint"
        self.staged = reached / "staged"
        self.notes = self.folder / "notes"

    def made(self) -> Made | None:
        """What the query was made from; None when it has never run."""
        try:
            return msgspec.json.decode((self.folder / "made.json").read_bytes(), type=Made, strict=False)
        except FileNotFoundError:
            return None

    def make(self, made: Made, inputs: int) -> None:
        """Prepare the folder; `made` is written last, whole and durably."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        self.write_made(made)
        self.notes.write_bytes(bytes(inputs))
        for path in self.folder.glob("*.decided"):
            path.unlink()

    def write_made(self, made: Made) -> None:
        """Replace what is known of how the query was made."""
        _write(self.folder / "made.json", msgspec.json.format(msgspec.json.encode(made), indent=2))

    def skips(self, input_: str) -> Path:
        """The file with the offsets of an input that are left out."""
        return self.folder / f"skips-{input_}.json"

    def write_skips(self, topics: Mapping[str, str], asides: Sequence[Aside]) -> None:
        """Let the inputs leave these events out; `topics` has the topic of each input."""
        for name, topic in topics.items():
            places = sorted({(aside.partition, aside.offset) for aside in asides if aside.topic == topic})
            _write(self.skips(name), msgspec.json.encode(places))


def _write(path: Path, data: bytes) -> None:
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
