"""Functions for a user's pipeline that Spark lacks: DataFrames and tables in, a DataFrame out.

Each function creates an operator of `headwater.engine.operators` and passes it to `headwater.engine.build.placement`.
"""

from headwater.engine.dsl.joins import enrich, join_as_of
from headwater.engine.dsl.stateful import stateful
from headwater.engine.dsl.windows import deduplicate, sessions, sliding

__all__ = ["deduplicate", "enrich", "join_as_of", "sessions", "sliding", "stateful"]
