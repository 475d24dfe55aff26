"""How Spark does it: the only room that imports pyspark, in a process of its own that the node starts and watches.

In come an app's pipelines and the log they read; out go commits into the store and batches onto topics. Enter by
`process` (the engine's main program) or by `Engine` (all pipelines of an app in this process, as tests run it).
"""

from headwater.engine.engine import Engine
from headwater.engine.points import arm
from headwater.engine.session import Spark, SparkSettings
from headwater.engine.surroundings import Surroundings

__all__ = ["Engine", "Spark", "SparkSettings", "Surroundings", "arm"]
