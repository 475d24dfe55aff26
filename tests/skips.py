"""Which tests may be skipped under CI, and which skips make the run fail."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ALLOWED = Path(__file__).with_name("allowed_skips.txt")


def allowed(text: str) -> dict[str, str]:
    """The reason of each node id prefix in the text of `allowed_skips.txt`."""
    lines = [line.strip() for line in text.splitlines()]
    entries = [line.partition("  # ") for line in lines if line and not line.startswith("#")]
    return {prefix.strip(): reason.strip() for prefix, _, reason in entries}


def unexpected(skipped: Iterable[str], prefixes: Iterable[str]) -> list[str]:
    """The skipped node ids that no prefix covers, each once, sorted."""
    starts = tuple(prefixes)
    return sorted({nodeid for nodeid in skipped if not nodeid.startswith(starts)})
