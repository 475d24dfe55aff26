"""What producers were told: every acknowledged event with its place in the log, in files of their own."""

from __future__ import annotations

from pathlib import Path

from headwater.events import Receipt

__all__ = ["Journal"]


class Journal:
    r"""The acknowledgements of one program, one line each: topic, partition, offset, number of the event.

    Args:
        path: The file; it is written anew.

    Example:
        >>> import tempfile
        >>> journal = Journal(Path(tempfile.mkdtemp(), "till-0.csv"))
        >>> journal.note("till-0-a-1", Receipt("orders", 2, 17))
        >>> journal.close()
        >>> journal.path.read_text()
        'orders,2,17,till-0-a-1\n'
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def note(self, event: str, receipt: Receipt) -> None:
        """Write down one acknowledgement."""
        self._file.write(f"{receipt.topic},{receipt.partition},{receipt.offset},{event}\n")

    def close(self) -> None:
        """Write out what waits."""
        self._file.close()
