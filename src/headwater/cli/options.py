"""Options of every command, the client and folder they lead to, and parsing of positions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from headwater.errors import BadOffsetError, BadSettingError, BadTimeError, DataError
from headwater.profiles import Profile, read_profile
from headwater.units import moment

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.pipelines import Selection

__all__ = [
    "DEFAULTS",
    "EVERY_PIPELINE",
    "LIMIT",
    "Flag",
    "Options",
    "PipelineOptions",
    "PositionText",
    "data_folder",
    "engine_folder",
    "local_folder",
    "open_client",
    "parse_position",
]


Flag = Annotated[bool, Parameter(negative="", show_default=False)]
"""An option without a value and without a negative form."""
LIMIT: Final = Parameter(name=["--limit", "-n"])
"""The names of the option that limits the number of rows."""


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Options of every command."""

    data: str | None = None
    """A data folder, or the http:// URL of a node [default: HEADWATER_DATA, else .headwater]."""
    profile: str | None = None
    """A profile of headwater.toml [default: HEADWATER_PROFILE, else embedded]."""
    json: Flag = False
    """Print one JSON object per line."""
    plain: Flag = False
    """Print without colours, boxes and progress bars."""
    trace: Flag = False
    """Print the traceback of an error."""

    @property
    def target(self) -> str:
        """The data folder, or the URL of a node."""
        return self.effective_profile.data_folder(self.data)

    @property
    def remote(self) -> bool:
        """Whether the target is a node."""
        return "://" in self.target

    @property
    def effective_profile(self) -> Profile:
        """The chosen profile, with the settings of the environment."""
        return read_profile(self.profile)

    @property
    def kafka(self) -> bool:
        """Whether the log is on Kafka; `--data` with a folder overrides a profile of the environment."""
        return self.effective_profile.kafka and not self.remote and (self.data is None or self.profile is not None)


DEFAULTS: Final = Options()


@Parameter(name="*")
@dataclass(frozen=True)
class PipelineOptions:
    """The options that select pipelines."""

    select: tuple[str, ...] = ()
    """A pipeline to take, `+name` with all that it reads, `name+` with all that read it; may be given several times."""
    exclude: tuple[str, ...] = ()
    """A pipeline to leave out, written in the same way; may be given several times."""

    def selection(self) -> Selection:
        """Returns the selection of pipelines."""
        from headwater.pipelines import Selection

        return Selection(self.select, self.exclude)


EVERY_PIPELINE: Final = PipelineOptions()


def open_client(options: Options) -> Client:
    """Open a client; does not create a log in a folder without one.

    Raises:
        DataError: There is no log in the folder.
    """
    from headwater.client import connect

    # Only a profile leads to brokers and RabbitMQ; --data names a folder or a node.
    if options.kafka or (options.data is None and options.effective_profile.queues is not None):
        return connect(profile=options.effective_profile.name)
    if not options.remote:
        data_folder(options)
    return connect(options.target)


def data_folder(options: Options) -> Path:
    """Returns the folder of an existing log, for commands that read its files.

    Raises:
        BadSettingError: The target is a node, or the log is on Kafka.
        DataError: There is no log in the folder.
    """
    folder = local_folder(options)
    if options.kafka:
        what = f"this command needs the folder of a log, but the log is on {options.effective_profile.log}"
        raise BadSettingError(what, fix="--data FOLDER")
    if not (folder / "log.json").exists():
        raise DataError(
            f"there is no log in {options.target}",
            detail="`headwater run app.py`, or hw.connect() in Python, creates one; --data names the folder of another",
            fix="headwater run app.py",
            folder=str(folder),
        )
    return folder


def engine_folder(options: Options) -> Path:
    """Returns the folder in which an engine has run; its log may be on Kafka.

    Raises:
        DataError: There is no log in the folder.
    """
    return local_folder(options) if options.kafka else data_folder(options)


def local_folder(options: Options) -> Path:
    """Returns the data folder, which may not exist yet.

    Raises:
        BadSettingError: The target is a node.
    """
    if options.remote:
        what = f"this command needs the folder of the log, not {options.target}"
        raise BadSettingError(what, fix="--data FOLDER")
    return Path(options.target)


PositionText = Annotated[str, Parameter(allow_leading_hyphen=True)]
_POSITION_FORMATS = 'a time such as 2026-01-01T00:00:00Z or -10m, an offset such as 1500, "earliest", "latest" or "end"'


def parse_position(text: str, *, now: datetime | None = None) -> str | int | datetime:
    """Parse a position for a client; "end" and "latest" are the same.

    Example:
        >>> parse_position("1500"), parse_position("end")
        (1500, 'latest')
        >>> parse_position("-10m", now=moment("2026-01-01T00:10:00Z")).isoformat()
        '2026-01-01T00:00:00+00:00'

    Raises:
        BadTimeError: The text is not a time, an offset or one of the words.
        BadOffsetError: The text is a number, but not an offset.
    """
    if text in ("earliest", "latest", "end"):
        return "latest" if text == "end" else text
    if text.isascii() and text.isdigit():
        return int(text)
    if text.lstrip("+-").replace(".", "", 1).isdigit():
        raise BadOffsetError(f"{text!r} is not an offset", detail=f"give {_POSITION_FORMATS}", offset=text)
    try:
        return moment(text, now=now)
    except BadTimeError as error:
        raise BadTimeError(error.what, detail=f"{error.detail}\ngive {_POSITION_FORMATS}", text=text) from None
