"""The commands: plain functions whose parameters are the arguments and whose docstring is the help.

The first line of a docstring equals the summary in cli/catalogue.py.
"""
