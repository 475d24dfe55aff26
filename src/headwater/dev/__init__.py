"""A new app: its folder is made from the files in `template/`. Enter at `new_app.py`."""
