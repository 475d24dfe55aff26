"""Builds a runnable streaming query from the user's function.

A `Pipeline` comes in. A `BuiltQuery` goes out: the streaming DataFrame, the operators that run at the sink, and the
settings the query needs. A pipeline that Spark would accept but run incorrectly is refused. Enter at `build.build`.
"""
