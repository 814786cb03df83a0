"""What runs on a machine and what does not, why, and what would change it."""

from collbench.doctor.verdicts import Change, changes, rows, unchanged

__all__ = ["Change", "changes", "rows", "unchanged"]
