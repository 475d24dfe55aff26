"""Takes over an edited app without a new start of Spark: enter at `reloader.Reloader`.

`definitions` says which pipelines an edit concerns. The others keep running.
"""
