"""The profile `local` for the running servers of a folder, as a table of headwater.toml."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from headwater.services.servers import Service, password_file

__all__ = ["profile_table", "write_table"]

_KEYS = {"kafka": "log", "postgres": "store", "rabbitmq": "queues", "spark-master": "spark"}
# The table up to the next header or the end of the file.
_TABLE = re.compile(r"^\[profiles\.local\]\n(?:(?!\[).*\n?)*", re.MULTILINE)


def profile_table(folder: Path, services: Mapping[str, Service]) -> str:
    """Returns a table with the addresses of the running servers; passwords are references to files.

    Args:
        folder: The folder of the servers.
        services: The servers that were started there, by name.
    """
    values = {
        key: services[name].url.replace("***", f"${{file:{password_file(folder / name)}}}")
        for name, key in _KEYS.items()
        if name in services and services[name].state == "running"
    }
    if "spark" in values:
        values |= {"checkpoints": str(folder / "checkpoints"), "python": sys.executable}
    # A JSON string is also a valid TOML string.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(["[profiles.local]", *lines, ""])


def write_table(file: Path, table: str) -> None:
    r"""Append the table to a file, or replace the table of the same profile.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "headwater.toml")
        >>> write_table(file, '[profiles.local]\nlog = "old"\n')
        >>> write_table(file, '[profiles.local]\nlog = "new"\n')
        >>> file.read_text()
        '[profiles.local]\nlog = "new"\n'
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    found = _TABLE.search(text)
    if found:
        rest = text[found.end() :]
        text = text[: found.start()] + table + ("\n" if rest else "") + rest
    else:
        text = f"{text.rstrip()}\n\n{table}" if text.strip() else table
    file.write_text(text, encoding="utf-8")
