"""Headwater: event streams, change capture and live views for Python teams, on Apache Spark.

The path of one event, in order:

1. `client/connection.py` takes it from the user's program; `client/rows.py` checks it against its topic's type.
2. `log/door.py` lets it wait, or decides what overload does; `log/topic.py` finds its partition.
3. `log/storage/layout.py` gives it an offset; `log/storage/partition.py` writes, syncs and publishes the new end.
4. `log/wakeup.py` wakes readers; `log/reader.py` reads on; `client/consumer.py` hands it to the user's loop.
"""
