"""Declared pipelines as frozen data: views, streams and file outputs, and the graph they form.

Functions and SQL text from the user's file come in. A `Graph` goes out, in an order in which the pipelines can run.
This package neither imports Spark nor touches disk; user functions are inspected but not called. Enter at `Pipeline`
and `Graph`.
"""

from headwater.pipelines.declaration import PipelineDeclaration
from headwater.pipelines.graph import Edge, Graph, faults
from headwater.pipelines.pipeline import (
    CorrectLate,
    DropLate,
    Function,
    KeepLate,
    LatePolicy,
    Pipeline,
    PipelineKind,
    correct,
    parse_late,
)
from headwater.pipelines.selection import ALL, Selection
from headwater.pipelines.tables.table import Table

__all__ = [
    "ALL",
    "CorrectLate",
    "DropLate",
    "Edge",
    "Function",
    "Graph",
    "KeepLate",
    "LatePolicy",
    "Pipeline",
    "PipelineDeclaration",
    "PipelineKind",
    "Selection",
    "Table",
    "correct",
    "faults",
    "parse_late",
]
