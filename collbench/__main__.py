"""`python -m collbench`: the same as the `collbench` command."""

import sys

from collbench.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
