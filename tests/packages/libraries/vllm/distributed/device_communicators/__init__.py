"""Part of a stand-in."""
