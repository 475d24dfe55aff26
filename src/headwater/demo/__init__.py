"""The demo: a small shop with producers, a node, and pipelines on Spark, each in its own process.

shop.py is the app as a user would write it; producers.py sends the events and records what was
acknowledged; demo_run.py starts and stops everything; audit.py checks that the numbers add up. Enter at
`DemoRun`.
"""

from headwater.demo.audit import PipelineFacts, TopicFacts
from headwater.demo.demo_run import SHOP, DemoResult, DemoRun, DemoSettings

__all__ = ["SHOP", "DemoResult", "DemoRun", "DemoSettings", "PipelineFacts", "TopicFacts"]
