"""`python -m collbench.measure.tether PID COMMAND...`: becomes the command, which ends in order when process PID ends.

A launch must not go on measuring when what started it was killed; the kernel keeps the wish across exec.
"""

import os
import signal
import sys

from collbench.measure.channel import die_with_parent

__all__ = ["main"]


def main(words: list[str]) -> int:
    """Become the command; gives 127 where it cannot be started."""
    die_with_parent(int(words[0]), signal.SIGTERM)
    try:
        os.execvp(words[1], words[1:])  # noqa: S606 - the command is the user's own, as a list, without a shell
    except OSError as error:
        sys.stderr.write(f"{words[1]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
