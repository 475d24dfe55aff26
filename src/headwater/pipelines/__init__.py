"""What the user asks for, as frozen data: views, streams and file outputs, and how they hang together.

In come functions and SQL text from the user's file; out comes a `Graph` in the order in which pipelines can run.
Nothing here knows Spark or touches disk: functions are only looked at. Enter at `Pipeline`, then `graph.py`.
"""

from headwater.pipelines.declaring import Wanted
from headwater.pipelines.graph import Edge, Graph, faults
from headwater.pipelines.late import Correct, Drop, Keep, Late, correct, late_named
from headwater.pipelines.pipeline import Function, Kind, Pipeline
from headwater.pipelines.tables.table import Table

__all__ = [
    "Correct",
    "Drop",
    "Edge",
    "Function",
    "Graph",
    "Keep",
    "Kind",
    "Late",
    "Pipeline",
    "Table",
    "Wanted",
    "correct",
    "faults",
    "late_named",
]
