"""The stand-in for its expert parallelism: the one-sided dispatch alone."""
