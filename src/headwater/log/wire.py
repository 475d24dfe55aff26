"""How rows, frames and receipts travel between a client and a node: the bytes of the log itself.

A body is a run of records, each a partition (-1: the node chooses by key), a length, and so many bytes of frames as
`storage/frame.py` lays them out, with their checksums. An append carries one record with one frame.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.errors import BadEventError, DamagedError
from headwater.events import Codec, storage_schema
from headwater.log.receipts import Receipts
from headwater.log.rows import Rows
from headwater.log.storage.frame import (
    ENVELOPE,
    HEADER_SIZE,
    Frame,
    Kind,
    decode_columns,
    encode_frame,
    parse_header,
)

__all__ = ["FRAMES", "RECEIPTS", "pack_frames", "pack_receipts", "pack_rows", "read_frames", "read_receipts", "read_rows"]

FRAMES: Final = "application/vnd.headwater.frames"
RECEIPTS: Final = "application/vnd.headwater.receipts"
_RECORD = struct.Struct("<iI")
_COUNTS = struct.Struct("<II")
_RECORD_BATCH: Final = 3  # the kind of an Arrow message
_HIGHEST_SEQUENCE: Final = 2**62
# The rest is decided by the log and cannot be sent.
_SENT: Final = tuple(field.name for field in ENVELOPE if field.name not in _DECIDED) if (
    _DECIDED := frozenset({"_hw.received_at", "_hw.offset", "_hw.running_max"})
) else ()
