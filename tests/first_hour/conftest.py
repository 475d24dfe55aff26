"""Tests of the first hour of a new user."""

# It imports the app beside it: it runs in the folder that `make check-hour` makes.
collect_ignore = ["shop_tests.py"]
