"""A stand-in for b12x 1.5.1: its PCIe all-reduces and the preparation that they want."""
