"""What every command takes, and how it reaches the log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from headwater.errors import BadSettingError, DataError
from headwater.profiles import Profile, read_profile

if TYPE_CHECKING:
    from headwater.client import Client

__all__ = ["DEFAULTS", "Options", "connected", "data_folder", "engine_folder", "new_folder"]


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Options of every command."""

    data: str | None = None
    """A folder, or a node's http:// address [default: HEADWATER_DATA, else .headwater]."""
    profile: str | None = None
    """A profile of headwater.toml [default: HEADWATER_PROFILE, else embedded]."""
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Print one JSON object per line."""
    plain: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """No colour, no boxes, nothing that moves."""
    trace: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Show the traceback of an error."""

    @property
    def place(self) -> str:
        """The data folder, or the address of a node, that is meant."""
        return self.settled.data_folder(self.data)

    @property
    def remote(self) -> bool:
        """Whether a node is meant rather than a folder."""
        return "://" in self.place

    @property
    def settled(self) -> Profile:
        """The profile that is meant, with what the environment changes of it."""
        return read_profile(self.profile)

    @property
    def kafka(self) -> bool:
        """Whether the log is on Kafka; a folder typed without a profile counts more than the environment."""
        return self.settled.kafka and not self.remote and (self.data is None or self.profile is not None)


DEFAULTS: Final = Options()


def connected(options: Options) -> Client:
    """A client for the log that is meant; a folder that holds no log is an error, not a new log.

    Raises:
        DataError: There is no log in the folder.
    """
    from headwater.client import connect

    if options.kafka or (options.data is None and options.settled.queues is not None):
        return connect(profile=options.settled.name)
    if not options.remote:
        data_folder(options)
    return connect(options.place)


def data_folder(options: Options) -> Path:
    """The folder of an existing log, for commands that need the files themselves.

    Raises:
        BadSettingError: The address of a node was given, or the log is on Kafka.
        DataError: There is no log in the folder.
    """
    folder = _folder(options)
    if options.kafka:
        what = f"this command needs the folder of a log, and the log is on {options.settled.log}"
        raise BadSettingError(what, fix="--data with a folder, without --profile")
    if not (folder / "log.json").exists():
        raise DataError(
            f"there is no log in {options.place}",
            detail="a log begins with the first `headwater run`, or with hw.connect() in Python",
            fix="headwater run app.py, or --data with the folder of a log",
            folder=str(folder),
        )
    return folder


def engine_folder(options: Options) -> Path:
    """The folder in which an engine has run, wherever its log is.

    Raises:
        DataError: There is no log in the folder.
    """
    return new_folder(options) if options.kafka else data_folder(options)


def new_folder(options: Options) -> Path:
    """The folder of a log that may still have to be made."""
    return _folder(options)


def _folder(options: Options) -> Path:
    if options.remote:
        what = f"this command needs the folder of the log, not {options.place}"
        raise BadSettingError(what, fix="--data with a folder")
    return Path(options.place)
