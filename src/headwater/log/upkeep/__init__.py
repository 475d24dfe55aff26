"""What is done to a log from time to time: time marks, retention, compaction, and checking every byte.

Enter at `Upkeep`, which the node runs, and at `verify`.
"""

from headwater.log.upkeep.compaction import Compacted, compact
from headwater.log.upkeep.retention import Removal, retain
from headwater.log.upkeep.upkeep import Upkeep
from headwater.log.upkeep.verify import Fault, Report, verify

__all__ = ["Compacted", "Fault", "Removal", "Report", "Upkeep", "compact", "retain", "verify"]
