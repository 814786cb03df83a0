"""How it is timed."""
