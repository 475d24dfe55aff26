"""Progress appears after a second, estimates the rest after three, and is a bar, lines or JSON."""

from __future__ import annotations

import io
import json

import pytest

from headwater.cli.formatting import format_bytes
from headwater.cli.options import Options
from headwater.cli.output import Output, Progress


class Stream(io.StringIO):
    """A stream that is, or is not, a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class StoppedClock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def progress(stream: Stream, clock: StoppedClock, *, json: bool = False) -> Progress:
    return Progress(Output(Options(json=json)), "verify", format_bytes, stream=stream, clock=clock)


def test_short_work_shows_nothing():
    stream, clock = Stream(terminal=True), StoppedClock()
    shown = progress(stream, clock)
    for step in range(9):
        clock.now = 1000 + step / 10
        shown.update(step, 100)
    shown.close()
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_in_bytes_and_a_time_left_after_three_seconds():
    stream, clock = Stream(terminal=True), StoppedClock()
    shown = progress(stream, clock)
    for second in range(1, 6):
        clock.now = 1000 + second
        shown.update(second * 1_000_000, 10_000_000, "orders/0")
    frames = stream.getvalue().split("\r")[1:]
    assert frames[0].split("  ")[:2] == ["verify orders/0", "[##......................] 10 %"]
    assert "1.0 MB of 10.0 MB  1.0 MB/s" in frames[0]
    assert ["left" in frame for frame in frames] == [False, False, True, True, True]
    assert frames[-1].rstrip().endswith("5.0 s left")


def test_the_bar_goes_away_at_the_end():
    stream, clock = Stream(terminal=True), StoppedClock()
    shown = progress(stream, clock)
    clock.now += 2
    shown.update(1, 2)
    shown.close()
    assert stream.getvalue().endswith("\r")
    assert stream.getvalue().split("\r")[-2].strip() == ""


def test_without_a_terminal_there_is_a_line_each_ten_seconds():
    stream, clock = Stream(terminal=False), StoppedClock()
    shown = progress(stream, clock)
    for second in range(1, 36):
        clock.now = 1000 + second
        shown.update(second, 100)
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["10", "20", "30"]
    assert "\r" not in stream.getvalue()


def test_json_progress_is_one_object_per_line():
    stream, clock = Stream(terminal=True), StoppedClock()
    shown = progress(stream, clock, json=True)
    for second in range(1, 22):
        clock.now = 1000 + second
        shown.update(second * 10, 300, "orders/0")
    rows = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(row["done"], row["total"], row["rate"], row["left"]) for row in rows] == [
        (100, 300, 10.0, 20.0),
        (200, 300, 10.0, 10.0),
    ]


def test_the_rate_is_that_of_the_last_ten_seconds():
    stream, clock = Stream(terminal=False), StoppedClock()
    shown = progress(stream, clock)
    done = 0
    for second in range(1, 41):
        clock.now = 1000 + second
        done += 1000 if second <= 20 else 10
        shown.update(done)
    assert shown.rate == pytest.approx(10)


def test_an_unknown_total_gives_count_and_rate_and_no_percentage():
    stream, clock = Stream(terminal=False), StoppedClock()
    shown = progress(stream, clock)
    clock.now += 20
    shown.update(5_000_000)
    assert stream.getvalue() == "verify  5.0 MB  250.0 kB/s\n"
