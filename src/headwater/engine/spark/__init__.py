"""Spark itself: its Java, its session and settings, whether it still answers, and its errors in our words."""
