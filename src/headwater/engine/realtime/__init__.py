"""Pipelines in Spark's real-time mode: Kafka to Kafka in milliseconds, at least once, outside ledger and identity.

In comes a pipeline that asks for `latency="realtime"`; it is refused (`qualifying.py`), or runs as a query beside the
others (`query.py`), over Spark's own Kafka source and sink (`connector.py`). Enter at `query.py`.
"""
