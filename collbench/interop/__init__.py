"""Files and programs of other projects: what we read of theirs, and what we write for them."""
