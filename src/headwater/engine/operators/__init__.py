"""Operators with state per key, one file each: pure Python over Arrow tables, under `headwater.engine.keyed.operator`.

What Spark itself can say stays Spark's; here is what it lacks. Where an operator runs is decided in
`headwater.engine.keyed`.
"""
