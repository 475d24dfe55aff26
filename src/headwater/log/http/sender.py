"""Events sent in the background: in their order, several in one request, repeated when that is safe."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from headwater.errors import HeadwaterError, UnreachableError, UsageError
from headwater.events import Codec, Receipt
from headwater.log.receipts import Receipts
from headwater.log.rows import Row, together
from headwater.log.wire import pack_rows

__all__ = ["Sender", "Sent"]

_MOST_WAITING: Final = 10_000
_MOST_TOGETHER: Final = 5_000
_LARGEST: Final = 8 << 20  # bytes of one request


class Sent:
    """One event that was handed over, and then its receipt or its error."""

    __slots__ = ("_done", "error", "receipt", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.receipt: Receipt | None = None
        self.error: BaseException | None = None
        self._done = threading.Event()

    def settle(self, outcome: Receipt | BaseException) -> None:
        """Say how it ended."""
        if isinstance(outcome, Receipt):
            self.receipt = outcome
        else:
            self.error = outcome
        self._done.set()

    def wait(self) -> Receipt:
        """The receipt, as soon as there is one; raises what went wrong."""
        self._done.wait()
        if self.receipt is None:
            raise self.error or UnreachableError("the event was not sent")
        return self.receipt


class Sender:
    """A thread that sends the events of one topic.

    Args:
        post: Sends the body of an append; told whether it may be repeated.
        codec_of: The codec of the topic's type at a version.
    """

    def __init__(self, post: Callable[[bytes, bool], Receipts], codec_of: Callable[[int], Codec]) -> None:
        self._post = post
        self._codec_of = codec_of
        self._waiting: deque[Sent] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="headwater-sender", daemon=True)
        self._thread.start()

    def put(self, row: Row) -> Sent:
        """Hand an event over; waits only while too many wait already."""
        sent = Sent(row)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < _MOST_WAITING)
            if self._closed:
                raise UnreachableError("the client is closed", fix="hw.connect(...) again")
            self._waiting.append(sent)
            self._changed.notify_all()
        return sent

    def close(self) -> None:
        """Send what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                taken = list(self._waiting)
                self._waiting.clear()
                self._changed.notify_all()
            if not taken:
                return
            lost: UnreachableError | None = None
            for run in _runs(taken):
                if lost is None:
                    lost = self._deliver(run)
                else:
                    _settle(run, lost)

    def _deliver(self, run: list[Sent]) -> UnreachableError | None:
        """Send events that fit together; an error that is one event's fault must not meet the others."""
        first = run[0].row
        try:
            body = pack_rows(together(self._codec_of(first.version), [sent.row for sent in run]))
            if len(body) > _LARGEST and len(run) > 1:
                return self._in_two(run)
            receipts = self._post(body, bool(first.producer))
        except UsageError as error:
            if len(run) > 1:
                return self._in_two(run)
            run[0].settle(error)
        except UnreachableError as error:
            _settle(run, error)
            return error
        except (HeadwaterError, OSError, ValueError) as error:
            _settle(run, error)
        else:
            for sent, receipt in zip(run, receipts, strict=True):
                sent.settle(receipt)
        return None

    def _in_two(self, run: list[Sent]) -> UnreachableError | None:
        middle = len(run) // 2
        lost = self._deliver(run[:middle])
        if lost is not None:
            # Behind a lost event nothing of its producer may follow: the log would take the lost one for a repeat.
            _settle(run[middle:], lost)
            return lost
        return self._deliver(run[middle:])


def _settle(run: list[Sent], error: BaseException) -> None:
    for sent in run:
        sent.settle(error)


def _runs(taken: list[Sent]) -> Iterator[list[Sent]]:
    """Events that can be written as one batch, in the order they came within each partition of a producer."""
    open_runs: dict[tuple[str, int | None], list[Sent]] = {}
    for sent in taken:
        place = (sent.row.producer, sent.row.partition)
        run = open_runs.get(place)
        if run and (len(run) >= _MOST_TOGETHER or not sent.row.follows(run[-1].row)):
            yield open_runs.pop(place)
            run = None
        if run is None:
            open_runs[place] = run = []
        run.append(sent)
    yield from open_runs.values()
