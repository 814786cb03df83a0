"""One file per system that is measured: what it needs, what it sends, how it runs."""
