"""The end of every batch: accounting, commit, publication and checkpoint.

The DataFrame of a batch comes in. One commit to the store and batches in the output topic go out. Enter at `sink.Sink`.
"""
