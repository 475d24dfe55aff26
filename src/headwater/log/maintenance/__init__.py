"""Maintenance of a log: idle markers, retention, compaction and verification of checksums.

Maintenance appends markers to a log and removes or rewrites its segments. Enter at `Maintenance`
(maintenance.py), which the node runs, and at `verify` (verify.py).
"""

from headwater.log.maintenance.compaction import CompactionResult, compact
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.maintenance.retention import RetentionResult, apply_retention
from headwater.log.maintenance.verify import Fault, VerifyReport, verify

__all__ = [
    "CompactionResult",
    "Fault",
    "Maintenance",
    "RetentionResult",
    "VerifyReport",
    "apply_retention",
    "compact",
    "verify",
]
