"""The on-disk format: frames in segments, segments in partitions, and a shared file of partition states.

An append takes rows with event times and returns offsets; a fetch takes an offset and returns frames. Enter
at `Partition` (partition.py); then read `frame.py` (bytes of a batch), `segment.py` (files and the offset
index) and `recovery.py` (repair after a crash).
"""

from headwater.log.storage.anchored_clock import AnchoredClock
from headwater.log.storage.disk import Disk
from headwater.log.storage.frame import Frame, FrameKind, decode_columns
from headwater.log.storage.frame_builder import AppendResult
from headwater.log.storage.partition import Partition
from headwater.log.storage.partition_state import PartitionState, StateFile
from headwater.log.storage.segment import Segment

__all__ = [
    "AnchoredClock",
    "AppendResult",
    "Disk",
    "Frame",
    "FrameKind",
    "Partition",
    "PartitionState",
    "Segment",
    "StateFile",
    "decode_columns",
]
