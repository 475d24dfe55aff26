"""Consumer groups: who reads which partition, and how far each group has come.

In come members that join, come back, commit and leave (or die), out goes who owns what. Enter at `Groups`.
"""

from headwater.log.groups.assignment import Assignment
from headwater.log.groups.groups import Groups, GroupState, Membership

__all__ = ["Assignment", "GroupState", "Groups", "Membership"]
