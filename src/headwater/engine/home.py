"""The folder of one query: what it was made from, where it began, its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from headwater.engine.folder import Folder, LocalFolder
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
    """Where one version of a pipeline keeps what its runs need.

    What the next driver needs, on whatever machine, is below `shared`: how the query was made, Spark's checkpoint. What
    each run makes anew is in `engine/NAME/VERSION` of the data folder, which is also what `shared` is if left out.

    Example:
        >>> import tempfile
        >>> home = Home(Path(tempfile.mkdtemp()), "revenue", 1)
        >>> home.query, home.made() is None
        ('revenue@1', True)
    """

    def __init__(self, data: Path, name: str, version: int, shared: Folder | None = None) -> None:
        self.query = f"{name}@{version}"
        self._local = data / "engine" / name / str(version)
        self._kept = (shared or LocalFolder(data / "engine")).inside(f"{name}/{version}")
        self.checkpoint = self._kept.inside("checkpoint")
        self.notes = self._local / "notes"
        self.loaded = self._local / "loaded"

    @property
    def staged(self) -> Path | None:
        """Where workers put large results for the driver; None when they share no folder with it."""
        return self._kept.path / "staged" if isinstance(self._kept, LocalFolder) else None

    def made(self) -> Made | None:
        """What the query was made from; None when it has never run."""
        try:
            return msgspec.json.decode(self._kept.read("made.json"), type=Made, strict=False)
        except FileNotFoundError:
            return None

    def make(self, made: Made, inputs: int) -> None:
        """Prepare the folders, and write down what the query is made from."""
        self._local.mkdir(parents=True, exist_ok=True)
        for shared in (self.notes, self.loaded):
            shared.write_bytes(bytes(inputs))
        for path in self._local.glob("*.decided"):
            path.unlink()
        if made != self.made():
            self._kept.write("made.json", msgspec.json.format(msgspec.json.encode(made), indent=2))

    def skips(self, input_: str) -> Path:
        """The file with the offsets of an input that are left out; written at each start, from the store."""
        return self._local / f"skips-{input_}.json"

    def write_skips(self, topics: Mapping[str, str], asides: Sequence[Aside]) -> None:
        """Let the inputs leave these events out; `topics` has the topic of each input."""
        for name, topic in topics.items():
            places = sorted({(aside.partition, aside.offset) for aside in asides if aside.topic == topic})
            self.skips(name).write_bytes(msgspec.json.encode(places))
