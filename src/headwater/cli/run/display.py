"""The display of a running app: a live table on a terminal, lines elsewhere, JSON on request; all on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

from headwater.cli.formatting import escape, format_count, format_duration
from headwater.cli.output import Output, Progress
from headwater.cli.run.engine_progress import STEPS
from headwater.cli.run.messages import RunMessage, RunMessages
from headwater.cli.run.status import PipelineStatus, RunStatus, StatusSource
from headwater.store.status import WorkProgress

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["RunDisplay"]

_INTERVAL: Final = 1.0  # seconds between two looks
_MAX_SHARE: Final = 0.05  # of the time, for reading the status
_OTHER_LINES: Final = 6  # of the terminal: title, headings, last line
_STYLES: Final = {"failed": "red", "waiting": "yellow", "starting": "yellow", "rebuilding": "yellow"}
_FREQUENT: Final = ("state", "progress")
"""Messages that a table shows anyway."""


class RunDisplay:
    """Shows the status of a running app until it is closed, from a thread of its own.

    Args:
        output: The output of the command.
        source: The status.
        title: The name of the app.
        url: The URL of the page; empty, if there is none.
        stream: The stream; stderr if left out.
        hint: The last line of the table: what keys do.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        output: Output,
        source: StatusSource,
        title: str,
        url: str = "",
        *,
        hint: str = "Ctrl-C stops",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = output
        self._source = source
        self._title = title
        self._url = url
        self._hint = hint
        self._stream = stream or sys.stderr
        self._clock = clock
        self._messages = RunMessages(clock(), url)
        self._errors: dict[str, tuple[str, float]] = {}  # by pipeline: the last one, and when
        self._rebuild: Progress | None = None
        self._rebuild_line = ""
        self._phase = "starting"
        self._live: Live | None = None
        self._drawn: object = None  # what the table shows
        self._lock = threading.Lock()  # held while something is printed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-display", daemon=True)

    @property
    def animated(self) -> bool:
        """Whether it shows a table, which other output to the terminal would destroy."""
        return self._stream.isatty() and not (self._output.json or self._output.plain)

    def start(self) -> None:
        """Begin to show the status."""
        if self.animated:
            self._live = _start_live(self._stream)
        self._thread.start()

    def close(self) -> None:
        """Take the table off the screen; later messages are plain lines. May be called again."""
        self._closed.set()
        with self._lock:
            if self._live is not None:
                self._live.update("")
                self._live.stop()
                self._live = None

    def note(self, text: str) -> None:
        """Print a message, above the table."""
        with self._lock:
            self._print(text)

    def show(self, message: RunMessage) -> None:
        """Print a message, above the table; in lines or as JSON."""
        with self._lock:
            for line in [message.json] if self._output.json else message.text.splitlines():
                self._print(line)

    def show_rebuild(self, progress: WorkProgress) -> None:
        """Show the progress of a rebuild: below the table, or as a line each ten seconds."""
        with self._lock:
            if self._rebuild is None:
                step = STEPS.get(progress.step, progress.step)
                self._rebuild = Progress(self._output, step, noun="events", stream=self._stream, clock=self._clock)
            facts = progress.done, progress.total, progress.at, progress.detail
            if self._live is None:
                self._rebuild.update(*facts)
            else:
                self._rebuild_line = self._rebuild.line(*facts)

    def update(self) -> None:
        """Read the status once, and print what is due."""
        status, now = self._source.read(), self._clock()
        with self._lock:
            if self._closed.is_set():
                return
            for message in self._messages.update(now, status):
                if message.kind in ("ready", "restarted", "restarting"):
                    self._phase = "ready" if message.kind != "restarting" else "restarting"
                if self._output.json:
                    self._print(message.json)
                elif self._live is None or message.kind not in _FREQUENT:
                    self._print(message.text)
            if self._live is not None:
                if not any(one.state == "rebuilding" for one in status.pipelines):
                    self._rebuild_line = ""
                self._remember_errors(now, status)
                self._refresh(now, status)

    def _run(self) -> None:
        while not self._closed.is_set():
            begun = self._clock()
            # Nothing that goes wrong here may harm the run, and the next look may succeed.
            with contextlib.suppress(Exception):
                self.update()
            self._closed.wait(max(_INTERVAL, (self._clock() - begun) / _MAX_SHARE))

    def _print(self, text: str) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(escape(text)), soft_wrap=True)
        else:
            self._stream.write(f"{text if self._output.json else escape(text)}\n")
            self._stream.flush()

    # -- the table -------------------------------------------------------------------------------------------------

    def _remember_errors(self, now: float, status: RunStatus) -> None:
        for one in status.pipelines:
            if one.detail and one.state in ("failed", "waiting"):
                self._errors[one.name] = (one.detail, now)

    def _refresh(self, now: float, status: RunStatus) -> None:
        """Draw the table again, if it has changed."""
        assert self._live is not None
        shown = _choose_rows(status.pipelines, self._live.console.height - _OTHER_LINES)
        rows = [self._cells(now, one) for one in shown]
        below = [f"and {len(status.pipelines) - len(shown)} more" if len(shown) < len(status.pipelines) else ""]
        below += [self._rebuild_line, self._hint]
        title = self._title_line(status)
        drawn = (title, rows, below, self._live.console.size)
        if drawn != self._drawn:
            self._drawn = drawn
            self._live.update(self._render(title, rows, [line for line in below if line], bool(status.broken)))
            self._live.refresh()

    def _title_line(self, status: RunStatus) -> str:
        state = self._phase if status.engine == "running" else f"{status.engine}   {status.detail}".rstrip()
        state = f"broken: {status.broken}" if status.broken else state
        return "   ".join(part for part in (self._title, self._url, state) if part)

    def _cells(self, now: float, one: PipelineStatus) -> list[str]:
        rate = "" if one.read is None else f"{format_count(round(self._messages.rates.get(one.name, 0)))}/s"
        text, at = self._errors.get(one.name, ("", now))
        if now - at >= 2 * _INTERVAL:
            text = f"{format_duration((now - at) // 10 * 10)} ago: {text}"
        return [one.name, one.state, rate, format_duration(one.behind) if one.left else "", escape(text)]

    def _render(self, title: str, rows: list[list[str]], below: list[str], broken: bool) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        colour = self._output.colour
        table = Table(box=None, pad_edge=False, header_style="bold" if colour else "", expand=True)
        for name in ("PIPELINE", "STATE"):
            table.add_column(name, no_wrap=True)
        for name in ("RATE", "BEHIND"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("LAST ERROR", no_wrap=True, ratio=1, overflow="ellipsis")
        for name, state, *others in rows:
            style = _STYLES.get(state, "") if colour else ""
            table.add_row(Text(name), Text(state, style=style), *map(Text, others))
        heading = Text(title, style=("bold red" if broken else "bold") if colour else "", overflow="fold")
        return Group(heading, table, *(Text(line, no_wrap=True, overflow="ellipsis") for line in below))


def _start_live(stream: TextIO) -> Live:
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(file=stream, highlight=False), auto_refresh=False, transient=True)
    live.start()
    return live


def _choose_rows(pipelines: tuple[PipelineStatus, ...], room: int) -> list[PipelineStatus]:
    """Returns the pipelines that fit: those that do not run first, then those furthest behind, in their order."""
    ranked = sorted(pipelines, key=lambda one: (one.runs, -one.behind))
    chosen = {one.name for one in ranked[: max(1, room)]}
    return [one for one in pipelines if one.name in chosen]
