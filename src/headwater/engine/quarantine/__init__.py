"""Quarantine: finds the events of a failed batch on which the user's code fails, and decides whether to go on.

`search` is the entry. It first runs the narrow part of the plan, the steps before the first shuffle, on the whole batch
at once: `probe_plan` rewrites these steps so that each row carries its number and the reason of its failure, and
`probed_function` calls the user's Python code in Spark's workers. Where that finds nothing, the batch is searched by
halves. `failure_limit` decides whether so many events fail that the pipeline must stop. This file imports nothing, so
that workers start fast.
"""
