"""Declared views over tables that change.

SQL text, or a `Table` that builds it, comes in. A tree of frozen nodes (`relation`) goes out.
`sql_parser.parse_relation` refuses everything that cannot be maintained incrementally. `functional_dependencies` checks
that a key identifies a row; `pushdown` simplifies the tree. `headwater.engine.tables` maintains the result. Enter at
`sql_parser.parse_relation`.
"""
