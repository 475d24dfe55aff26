"""The profile that points to the servers of a folder, as a table of headwater.toml."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from headwater.services.postgres import postgres_password_file
from headwater.services.rabbitmq import rabbitmq_password_file
from headwater.services.servers import Service

__all__ = ["profile_table", "write_table"]

_TABLE = re.compile(r"^\[profiles\.local\]\n(?:(?!\[).*\n?)*", re.MULTILINE)


def profile_table(folder: Path, services: Mapping[str, Service]) -> str:
    """Returns the table for the servers that run; passwords are referred to.

    Args:
        folder: The folder of the servers.
        services: What was started there, by name.
    """
    running = {name: service for name, service in services.items() if service.state == "running"}
    values: dict[str, str] = {}
    if "kafka" in running:
        values["log"] = running["kafka"].url
    if "postgres" in running:
        password = f"${{file:{postgres_password_file(folder / 'postgres')}}}"
        values["store"] = running["postgres"].url.replace("***", password)
    if "rabbitmq" in running:
        password = f"${{file:{rabbitmq_password_file(folder / 'rabbitmq')}}}"
        values["queues"] = running["rabbitmq"].url.replace("***", password)
    if "spark-master" in running:
        values["spark"] = running["spark-master"].url
        values["checkpoints"] = str(folder / "checkpoints")
        values["python"] = sys.executable
    # A text in JSON is one in TOML too.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(["[profiles.local]", *lines, ""])


def write_table(file: Path, table: str) -> None:
    r"""Append the table to a file, or put it in place of the one that is there.

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
