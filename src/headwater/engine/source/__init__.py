"""The log as a streaming source of Spark; enter at `log_source`.

Spark's Python workers import only this package. This file imports nothing, because every worker would pay for it.
"""
