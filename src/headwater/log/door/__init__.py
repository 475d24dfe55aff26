"""Where events wait before they are appended: the bounded buffer, its policy, its counts.

In come entries from senders, out go groups of them to be appended with one sync; what a full buffer does is decided and
counted here. Enter at `Door`.
"""

from headwater.log.door.counts import COUNTED, Counts
from headwater.log.door.door import Door, Entry
from headwater.log.door.overload import Overload, WhenFull, backpressure, buffer, drop, overload_named

__all__ = [
    "COUNTED",
    "Counts",
    "Door",
    "Entry",
    "Overload",
    "WhenFull",
    "backpressure",
    "buffer",
    "drop",
    "overload_named",
]
