"""Operators with state per key: Python over Arrow tables, on the interface of `headwater.engine.state.state`.

These are the operators that Spark lacks: user functions (`stateful`), joins of events with tables (`enrich`,
`as_of_join`), lookback (`sliding_windows`, `session_windows`, `deduplicate`) and `table_history`. `reorder_buffer`
holds rows until the watermark passes them; `timelines` keeps the time-ordered versions of a key. An operator does not
know where it runs; `headwater.engine.build.placement` decides that.
"""
