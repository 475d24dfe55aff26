"""Views over tables that change, as the user asks for them: `table.py` builds SQL, `from_sql.py` reads it.

SQL text comes in, a `relation.py` tree goes out: frozen nodes, with everything refused that cannot be kept right while
the tables change. `unique.py` says which columns identify a row of it. How the tree is kept up to date is the business
of `headwater.engine.operators.tables`.
"""
