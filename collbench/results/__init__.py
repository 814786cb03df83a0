"""Records of everything that is measured, and how they are kept."""
