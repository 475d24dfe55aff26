"""Views as programs read them: rows, single rows, open windows, past states and changes.

A `ViewQuery` comes in, a `ViewResult` goes out. `ViewSource` is the interface; it is implemented over a data folder or
database (`StoreViews`) and over HTTP. Enter at `view_query.ViewSource`.
"""
