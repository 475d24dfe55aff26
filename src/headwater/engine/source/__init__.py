"""The log as a streaming source of Spark; enter at `log_source`. Spark's workers import this room and nothing else.

So nothing is imported here: each import would be paid in every worker.
"""
