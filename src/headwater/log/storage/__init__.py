"""How events lie on disk: frames in segments, segments in partitions, and the shared file of their ends.

In come rows with their event times, out come offsets; later, offsets in and frames out. Enter at `Partition`.
"""

from headwater.log.storage.disk import Disk
from headwater.log.storage.ends import Ends, Slot
from headwater.log.storage.frame import Frame, Kind, decode_columns
from headwater.log.storage.layout import Appended, Part
from headwater.log.storage.partition import Partition, Written
from headwater.log.storage.segment import Segment

__all__ = [
    "Appended",
    "Disk",
    "Ends",
    "Frame",
    "Kind",
    "Part",
    "Partition",
    "Segment",
    "Slot",
    "Written",
    "decode_columns",
]
