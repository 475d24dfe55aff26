"""How a view over tables is kept right: changes are rows with a weight, -1 for what was, +1 for what is.

`dataflow.py` makes a chain of steps of a query (`headwater.pipelines.tables`): steps without state are SQL that DuckDB
runs over Arrow tables (`expressions.py`, `evaluation.py`), the others are operators with state, one file each. Rows of
a table come in (`integrate.py`), changes of the view go out.
"""
