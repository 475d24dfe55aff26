"""State per key: what operators keep between batches, and the hosts they run on.

An `Operator` (`state`) is Python without Spark: the states of some keys, new rows and the watermark come in; changed
states and result rows go out. Its state is a set of named spaces of bytes. `encoding` converts keys and rows to bytes,
`grouping` groups rows by key. `store_state` hosts an operator at the sink, `spark_host` hosts it inside a Spark query.
This file imports nothing, so that workers start fast.
"""
