"""How a program gets a client: from a folder, a node, Kafka, or a profile that says where everything is."""

from __future__ import annotations

from pathlib import Path

from headwater.address import redacted
from headwater.client.client import Client
from headwater.client.views import FolderViews
from headwater.errors import BadSettingError
from headwater.events import Clock, SystemClock
from headwater.log import EventLog
from headwater.log.places import open_log
from headwater.profiles import Profile, read_profile

__all__ = ["connect"]


def connect(
    where: str | Path | None = None, *, profile: str | None = None, clock: Clock | None = None
) -> Client:
    """A client for the log in a folder, on a node or on Kafka.

    Args:
        where: A folder, a node's "http://127.0.0.1:8642", or "kafka://host:port"; if left out, the log of the profile.
        profile: A profile of headwater.toml or pyproject.toml (default: `HEADWATER_PROFILE`; without one, the log is
            in the folder `HEADWATER_DATA`, else in ".headwater" here).
        clock: What time it is, for tests.

    Example:
        >>> import tempfile
        >>> client = connect(tempfile.mkdtemp())
        >>> client.topics()
        []
    """
    if where in (None, ""):
        return _profiled(read_profile(profile), clock or SystemClock())
    if profile is not None:
        what = "both a place and a profile are given, and each says where the log is"
        raise BadSettingError(what, fix=f'hw.connect(profile="{profile}")')
    place = str(where)
    if place.startswith(("http://", "https://")):
        from headwater.log.http import HttpLog  # httpx is slow to import and not needed for a folder

        return Client(HttpLog(place), clock or SystemClock())
    if place.startswith("kafka://"):
        from headwater.log.kafka import KafkaLog

        return Client(KafkaLog(place, clock=clock), clock or SystemClock())
    if "://" in place:
        what = f"cannot connect to {redacted(place)!r}"
        forms = "it can be a folder, http://host:port or kafka://host:port"
        raise BadSettingError(what, detail=forms, fix='hw.connect(".headwater")')
    return Client(EventLog(place, clock=clock), clock or SystemClock())


def _profiled(profile: Profile, clock: Clock) -> Client:
    """A client for the log and the views of a profile."""
    if profile.log is None and profile.store is None and profile.queues is None:
        return connect(profile.data_folder(), clock=clock)
    folder = Path(profile.data_folder())
    log = open_log(profile.log.resolved() if profile.log else str(folder), clock)
    url = profile.store.resolved() if profile.store else None
    queues = profile.queues.resolved() if profile.queues else None
    return Client(log, clock, FolderViews(log, folder, url), folder=folder, queues=queues)
