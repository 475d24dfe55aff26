"""What the engine reports about itself: its memory, its progress, and the steps of its start."""
