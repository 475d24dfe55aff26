"""The forms in which events, types and answers travel: JSON, NDJSON, CloudEvents, Arrow, JSON Schema.

In come texts and batches, out come rows and bytes. Enter at `intake.py` for what comes, at `formats.py` for what goes.
"""

__all__: list[str] = []
