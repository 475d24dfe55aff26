"""The cases of `bench_growth`: each prepares a folder of some size, and measures it in a new process.

`figures` has what is measured; `log_cases`, `store_cases`, `queue_cases` and `engine_cases` have the
cases. `child` runs one.
"""
