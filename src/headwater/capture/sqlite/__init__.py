"""SQLite as a source of changes: triggers write each change into a table of the file, and the source reads it there.

`SqliteSource` (`source.py`) is the entrance. `definition.py` reads what a table looks like, `triggers.py` writes the
SQL of the triggers, `shadow_schema.py` installs it, and `batches.py` turns stored rows into batches of changes.
"""

from headwater.capture.sqlite.source import SqliteSource

__all__ = ["SqliteSource"]
