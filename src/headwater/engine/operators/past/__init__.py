"""Events beside the past of their key: their own last minutes, sessions, the first of equal ones."""
