"""Search of a library's settings within a budget: declared space -> candidates -> trials -> finalist."""
