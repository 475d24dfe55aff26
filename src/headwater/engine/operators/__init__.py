"""Operators with state per key, one file each: pure Python over Arrow tables, under `headwater.engine.keyed.operator`.

What Spark itself can say stays Spark's; here is what it lacks: the user's `own` logic, `joins` of events with tables,
the `past` of a key, and queries over `tables` with their `scalars`. Rows as most of them take them are in
`arrivals.py`, rows that wait for a time in `slices.py`. Where an operator runs is decided in
`headwater.engine.building.placing`.
"""
