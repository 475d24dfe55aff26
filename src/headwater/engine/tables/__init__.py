"""Incremental maintenance of views over tables: changes are Z-set rows, with weight -1 for old and +1 for new rows.

`compiler` and `dataflow` turn a relation (`headwater.pipelines.tables`) into a chain of steps. Stateless steps are SQL
that DuckDB runs over Arrow tables (`expressions`, `evaluation`). Stateful steps are operators: `join`, `group`, `top`
and `ZSetDistinct`. Rows of a table come in through `integrate` or `apply_changes`; changes of the view go out. Enter at
`dataflow.compile_tables`.
"""
