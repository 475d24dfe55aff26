"""An app: the topics and tables of one Python file, as frozen definitions; nothing is touched until it runs."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TypedDict, Unpack

from headwater.errors import BadAppError, HeadwaterError, Place
from headwater.log import Durability, Overload, Retention, Topic
from headwater.log.definition import check_name

__all__ = ["App", "TopicOptions", "load_app"]


class TopicOptions(TypedDict, total=False):
    """What may be said about a topic besides its name and type; durations may be text such as "10 minutes"."""

    key: str | tuple[str, ...]
    """The column, or columns, that say what an event is about; events of one key stay in order."""
    time: str
    """The column that says when an event happened; arrival, if there is none."""
    lateness: str | timedelta
    """How long to wait for stragglers."""
    partitions: int
    """How many sequences the events are spread over; fixed once the topic exists."""
    durability: str | Durability
    """What an acknowledgement promises: "durable", "fast" or "memory"."""
    retention: str | timedelta | Retention
    """How long events are kept; for ever, if left out."""
    compact: bool
    """Keep only the newest event of each key."""
    overload: str | Overload
    """What happens when producers are faster than the disk: "backpressure", "buffer", "drop" or `hw.drop(…)`."""
    idle: str | timedelta
    """After this long without events, time moves on by itself."""
    ahead: str | timedelta
    """A time further in the future than this is a wrong clock and does not move time on."""


class App:
    """What a user's file declares; `headwater run app.py` creates it and keeps it running.

    Args:
        name: Letters, digits, `.`, `_`, `-`.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Order:
        ...     order_id: str
        ...     customer_id: int
        >>> app = App("shop")
        >>> orders = app.topic("orders", Order, key="customer_id", partitions=3)
        >>> orders.name, orders.partitions, list(app.topics)
        ('orders', 3, ['orders'])
    """

    def __init__(self, name: str) -> None:
        self.name = check_name(name, what="app")
        self._topics: dict[str, Topic] = {}

    @property
    def topics(self) -> dict[str, Topic]:
        """All topics and tables by name, in the order they were declared."""
        return dict(self._topics)

    def topic(self, name: str, type_: object, /, **options: Unpack[TopicOptions]) -> Topic:
        """Declare a topic.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: Dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema of its events.
            options: See `TopicOptions`.

        Raises:
            UsageError: The definition cannot be right; the error quotes the user's line.
        """
        return self._declare(name, type_, options)

    def table(
        self, name: str, type_: object, /, *, key: str | tuple[str, ...], time: str | None = None
    ) -> Topic:
        """Declare a table that programs write to: a topic of which the newest event per key is kept.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: The type of its rows.
            key: The column or columns that identify a row.
            time: The column that says since when a row holds; arrival, if there is none.

        Example:
            >>> App("shop").table("products", "product_id int, price decimal(10,2)", key="product_id").compact
            True
        """
        options = TopicOptions(key=key, compact=True)
        if time is not None:
            options["time"] = time
        return self._declare(name, type_, options)

    def _declare(self, name: str, type_: object, options: TopicOptions) -> Topic:
        place = Place.of_caller()
        if (before := self._topics.get(name)) is not None:
            what = f'app "{self.name}" declares "{name}" twice'
            raise BadAppError(what, detail=f"first at {before.place}", fix="choose another name", place=place)
        try:
            topic = Topic.declare(name, type_, place=place, **options)
        except HeadwaterError as error:
            error.place = error.place or place
            raise
        self._topics[name] = topic
        return topic

    def __repr__(self) -> str:
        return f"App({self.name!r}, topics={list(self._topics)})"


def load_app(path: str | Path) -> App:
    """The app that a Python file defines.

    The file runs as a module: what stands under `if __name__ == "__main__"` does not. Its folder is on the path, so it
    may import its neighbours.

    Raises:
        BadAppError: The file is missing, does not run, or defines no app, or several.
    """
    file = Path(path)
    if not file.is_file():
        near = sorted(name.name for name in file.parent.glob("*.py"))[:5]
        detail = f"files here: {', '.join(near)}" if near else "there is no Python file in that folder"
        raise BadAppError(f"no file {str(path)!r}", detail=detail, fix="headwater run app.py", path=str(path))
    module = _imported(file)
    apps = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, App)}
    if not apps:
        raise BadAppError(f"{path} defines no app", fix='app = hw.App("shop")', path=str(path))
    if len(apps) > 1:
        names = ", ".join(name for name, _ in apps.values())
        what = f"{path} defines {len(apps)} apps: {names}"
        raise BadAppError(what, detail="one file is one app", fix="keep one of them", path=str(path))
    return next(iter(apps.values()))[1]


def _imported(file: Path) -> ModuleType:
    name = f"headwater_app_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.absolute())
    if spec is None or spec.loader is None:
        raise BadAppError(f"{file} is not a Python file", fix="headwater run app.py", path=str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints of the user's classes are looked up there
    sys.path.insert(0, str(file.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except HeadwaterError:
        raise
    except Exception as error:
        raise _broken(file, error) from error
    return module


def _broken(file: Path, error: Exception) -> BadAppError:
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        place = Place.near(error.filename or str(file), error.lineno or 1, line)
        return BadAppError(f"{file} has a syntax error: {error.msg}", place=place, path=str(file))
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file.absolute())
    ]
    found = frames[-1] if frames else None
    place = Place.near(found.filename, found.lineno or 1, found.line or "") if found else Place(str(file), 1)
    what = f"{file} cannot be loaded: {kind}: {error}".rstrip(": ")
    return BadAppError(what, fix=f"python {file}", place=place, path=str(file))
