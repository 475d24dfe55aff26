"""Runs pipelines on Spark; the only package that imports pyspark.

The pipelines of an app and the log they read come in. Commits to the store and batches in topics go out. The engine
runs in its own process, which the node starts and watches: enter at `process`. Tests enter at `engine.Engine`, which
runs all pipelines of an app in the current process. This file imports nothing, because Spark's Python workers load
`engine.source` and would pay for every import here.
"""
