"""State per key: what operators remember between batches, and the places where they run.

An operator (`operator.py`) is a pure piece of Python: states of some keys, rows that arrived, the watermark → changed
states, rows. It sees its state as named spaces of bytes (`state.py`); keys and rows become bytes in `keys.py` and
`rows.py`. Nothing of Spark is imported here, so that workers start fast.
"""
