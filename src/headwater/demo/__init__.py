"""The demo: a small shop with its database, producers, a node, and pipelines on Spark, each in its own process.

shop.py is the app as a user would write it; producers.py sends the events and records what was
acknowledged; shop_database.py runs the database and changes its products; demo_run.py starts and stops
everything; audit.py checks that the numbers add up. Enter at `DemoRun`.
"""

from headwater.demo.audit import PipelineFacts, TableFacts, TopicFacts
from headwater.demo.demo_run import SHOP, DemoResult, DemoRun, DemoSettings

__all__ = ["SHOP", "DemoResult", "DemoRun", "DemoSettings", "PipelineFacts", "TableFacts", "TopicFacts"]
