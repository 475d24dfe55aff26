"""The demo: a small shop whose programs write to the log and follow it, each in a process of its own.

`shop.py` is the app as a user would write it, `traffic.py` the programs that produce, `followers.py` the groups that
consume; `stage.py` starts and ends them all and checks that the numbers add up. Enter at `Stage`.
"""

from headwater.demo.stage import Outcome, Stage, TopicFacts

__all__ = ["Outcome", "Stage", "TopicFacts"]
