"""Why it takes that long: what an algorithm puts on the wires, and what the wires can carry."""
