"""One transaction: the data of a commit, the ledger, operator state, retried events and refused rows.

A `Commit` comes in, and `commit_batch` (transaction.py) writes all of it or nothing.
"""
