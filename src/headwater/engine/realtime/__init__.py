"""Pipelines in Spark's real-time mode: Kafka to Kafka in milliseconds, at least once, without a ledger.

A pipeline with `latency="realtime"` comes in. `require_realtime` refuses it or it runs as a `RealtimeQuery` beside the
other queries, over Spark's own Kafka source and sink (`kafka`). Enter at `realtime_query`.
"""
