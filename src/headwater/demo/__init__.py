"""The demo: a small shop with programs that produce, a node, and pipelines on Spark, each in a process of its own.

`shop.py` is the app as a user would write it, `traffic.py` decides what the programs send, `journal.py` keeps what was
acknowledged; `stage.py` starts and ends them all, `audit.py` checks that the numbers add up. Enter at `Stage`.
"""

from headwater.demo.audit import PipelineFacts, TopicFacts
from headwater.demo.stage import SHOP, Outcome, Play, Stage

__all__ = ["SHOP", "Outcome", "PipelineFacts", "Play", "Stage", "TopicFacts"]
