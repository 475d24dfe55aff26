"""The JSON documents of the API. The OpenAPI description is generated from them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headwater.client.consumer import OffsetReset
from headwater.client.deletion import DeletedGroup, Deletion
from headwater.client.disk_usage import DiskPart, DiskUsage, HeldTopic
from headwater.events import Receipt
from headwater.events.schema_export import schema_document
from headwater.log import GroupState, Membership, PartitionRange, Topic
from headwater.log.tombstones import TombstoneHorizon
from headwater.store.status import MemoryReport

__all__ = [
    "AppendDocument",
    "CommitRequest",
    "CompleteDocument",
    "CountsDocument",
    "DeletedGroup",
    "Deletion",
    "DiskPart",
    "DiskUsage",
    "EventCountDocument",
    "FetchRequest",
    "GroupChangeDocument",
    "GroupChangeRequest",
    "GroupState",
    "Health",
    "HeldTopic",
    "JoinRequest",
    "LagDocument",
    "Membership",
    "NewTopic",
    "OffsetDocument",
    "OffsetReset",
    "PartitionRange",
    "Problem",
    "Receipt",
    "ResetRequest",
    "RowsDocument",
    "SchemaDocument",
    "SequencesDocument",
    "SqlRequest",
    "SqlResponse",
    "TombstoneHorizon",
    "TopicDocument",
    "TopicSummary",
    "Version",
    "ViewDocument",
    "topic_document",
]


class Problem(msgspec.Struct):
    """An error (RFC 9457): what failed, the detail, and what to do next."""

    type: str
    title: str
    status: int
    code: str
    retryable: bool
    detail: str | None = None
    fix: str | None = None
    location: str | None = None
    source: str | None = None
    data: dict[str, Any] = {}


class SchemaDocument(msgspec.Struct):
    """A topic's type at one version; `arrow` is an Arrow IPC schema message in base64."""

    version: int
    ddl: str
    json_schema: dict[str, Any]
    arrow: str


class EventCountDocument(msgspec.Struct):
    """The number of events by partition."""

    topic: str
    partitions: dict[str, int]


class CompleteDocument(msgspec.Struct):
    """A topic and the event time up to which it is complete, in microseconds since 1970."""

    topic: str
    event_time: int


class RetentionDocument(msgspec.Struct, forbid_unknown_fields=True):
    """How long events are kept: seconds, bytes."""

    time: float | str | None = None
    size: int | str | None = None
    force: bool = False


class OverloadDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What happens when producers are faster than the disk; `timeout` in seconds."""

    when_full: str = "wait"
    events: int = 10_000
    timeout: float | str | None = None
    one_in: int = 10


class DeviceClockDocument(msgspec.Struct, forbid_unknown_fields=True):
    """The device clock that event times come from; `limit` in seconds."""

    column: str
    sent: str
    device: list[str] = []
    limit: float | str | None = None


class TopicDocument(msgspec.Struct):
    """A topic's definition; durations in seconds, sizes in bytes."""

    name: str
    version: int
    key: list[str]
    time: str | None
    lateness: float
    partitions: int
    durability: str
    retention: RetentionDocument
    compact: bool
    overload: OverloadDocument
    idle: float
    ahead: float
    segment_size: int
    clocked: bool
    schema: SchemaDocument
    device_clock: DeviceClockDocument | None = None
    values: str = "json"
    invalid: str | None = None
    first_version: int = 1


def topic_document(topic: Topic) -> TopicDocument:
    """Returns the document of a topic."""
    fields = msgspec.json.decode(topic.to_json())
    fields["schema"] = schema_document(topic.schema, topic.version, topic.name)
    return msgspec.convert(fields, TopicDocument)


class ArrowSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A type as an Arrow IPC schema message in base64."""

    arrow: str


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic to create, or to update to this definition.

    `schema` is Spark DDL text or an Arrow schema; durations and sizes may be text such as "10 minutes" and "64 MB".
    `given` names the options that change an existing topic; all options of the document if left out.
    """

    name: str
    schema: str | ArrowSchema
    key: str | list[str] | UnsetType | None = UNSET
    time: str | UnsetType | None = UNSET
    lateness: float | str | UnsetType = UNSET
    partitions: int | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    retention: str | RetentionDocument | UnsetType = UNSET
    compact: bool | UnsetType = UNSET
    overload: str | OverloadDocument | UnsetType = UNSET
    idle: float | str | UnsetType = UNSET
    ahead: float | str | UnsetType = UNSET
    segment_size: int | str | UnsetType = UNSET
    clocked: bool | UnsetType = UNSET
    device_clock: DeviceClockDocument | UnsetType = UNSET
    values: str | UnsetType = UNSET
    invalid: str | UnsetType | None = UNSET
    given: list[str] | UnsetType = UNSET


class CaptureSummary(msgspec.Struct):
    """The capture of a table: its name, its state, and the seconds since the time up to which the source is known."""

    name: str
    state: str
    behind_seconds: float | None


class TopicSummary(msgspec.Struct, omit_defaults=True):
    """A topic in a list: its number of offsets, and when the last batch was appended (microseconds since 1970).

    The topic of a captured table has its capture.
    """

    name: str
    partitions: int
    events: int
    end: int
    appended_at: int
    capture: CaptureSummary | None = None


class OffsetDocument(msgspec.Struct):
    """The offset of a start in a partition."""

    partition: int
    offset: int


class SequencesDocument(msgspec.Struct):
    """The highest sequence of a producer in each partition; -1 where it has none."""

    producer: str
    sequences: list[int]


class CountsDocument(msgspec.Struct):
    """The append counters of a topic: offered = appended + duplicate + refused + dropped."""

    counts: dict[str, int]


class AppendDocument(msgspec.Struct):
    """The partitions and offsets of the events of a body, in their order; -1 for one that is not in the topic.

    `invalid` has the receipts of invalid events by their index: diverted, or refused with `skip_invalid`.
    """

    topic: str
    events: int
    duplicates: int
    dropped: str | None
    partitions: list[int]
    offsets: list[int]
    diverted: int = 0
    refused: int = 0
    invalid: dict[int, Receipt] = {}


class FetchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A fetch: the offset per partition, the approximate bytes of each, and the seconds to wait for the first frame."""

    positions: dict[int, int]
    max_bytes: int = 1 << 20
    wait: float = 0
    group: str | None = None


class JoinRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A join: where a new group begins, and the session timeout in seconds."""

    start: str | int = "earliest"
    session: float = 300.0


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A sync or commit of a member: its generation and, for a commit, the next offset per partition."""

    generation: int
    offsets: dict[int, int] = {}


class GroupChangeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A heartbeat: the living members, the mark of the last response, and the seconds to wait for a change."""

    members: list[str] = []
    mark: str | None = None
    wait: float = 0


class GroupChangeDocument(msgspec.Struct):
    """Whether the group changed since the mark of the request; true for a request without a mark."""

    changed: bool
    mark: str


class ResetRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A reset: to a start in all partitions, or to an offset in each."""

    to: str | int | None = None
    offsets: dict[int, int] | None = None
    dry_run: bool = False


class LagDocument(msgspec.Struct):
    """The lag of a group in a partition: unread events, and the seconds that the oldest has waited."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    events: int
    behind: float
    gone: int
    owner: str | None


class ViewDocument(msgspec.Struct):
    """A view: its key and columns, its number of rows, and the event time up to which it is complete.

    `schema` is Spark DDL text, `arrow` an Arrow IPC schema message in base64. `rows` is null for system views.
    """

    name: str
    kind: str
    version: int
    key: list[str]
    schema: str
    window: str | None
    rows: int | None
    watermark: str | None
    changes_topic: str | None
    arrow: str


class RowsDocument(msgspec.Struct):
    """Rows of a view; `open` says of each whether its window may still change, null for a view without windows."""

    name: str
    columns: list[str]
    rows: list[dict[str, Any]]
    open: list[bool | None]
    watermark: str | None
    position: str


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One SELECT over views, the values of its `?` placeholders, and the maximum number of rows."""

    sql: str
    parameters: list[Any] = []
    limit: int = 1000


class SqlResponse(msgspec.Struct):
    """The result of a query; `truncated` if there are more rows than the limit or the size allow."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool


class Health(msgspec.Struct):
    """The health of the node."""

    status: str
    pid: int
    started_at: str
    uptime: float
    topics: int
    members: int
    connections: int
    memory: MemoryReport


class Version(msgspec.Struct):
    """The version of the node."""

    name: str
    version: str
