"""Spark itself: the Java virtual machine, the session and its settings, liveness checks, and error translation.

Enter at `session.Spark`.
"""
