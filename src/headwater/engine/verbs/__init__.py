"""What Spark lacks, as functions for a user's pipeline: DataFrames and tables in, a DataFrame out.

Each makes an operator of `headwater.engine.operators` and gives it a place (`headwater.engine.building.placing`).
"""

from headwater.engine.verbs.joins import enrich, join_as_of
from headwater.engine.verbs.own_logic import stateful
from headwater.engine.verbs.past import deduplicate, sessions, sliding

__all__ = ["deduplicate", "enrich", "join_as_of", "sessions", "sliding", "stateful"]
