"""Its buffers."""
