"""How Spark does it: the only room that imports pyspark, in a process of its own that the node starts and watches.

In come an app's pipelines and the log they read; out go commits into the store and batches onto topics. Enter by
`process` (the engine's main program) or by `engine` (all pipelines of an app in this process, as tests run it). Nothing
is imported here: Spark's workers load `source` alone, and every import would be paid in each of them.
"""
