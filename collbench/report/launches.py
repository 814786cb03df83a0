"""A folder of runs in the place of one, as `collbench gate --paired` writes it: said with the names of the runs."""

from pathlib import Path

from collbench.errors import UsageError
from collbench.results.reading import RUN
from collbench.results.summary import clean

__all__ = ["refuse_folder_of_runs"]

_MOST = 4


def refuse_folder_of_runs(path: Path) -> None:
    """Return where the folder holds a run, or no runs below it either.

    Raises:
        UsageError: runs lie below it; the first few are named, and one in a command.
    """
    if not path.is_dir() or (path / RUN).exists():
        return
    try:
        names = sorted(one.parent.name for one in path.glob(f"*/{RUN}"))
    except OSError:  # whoever reads it next says why
        return
    if names:
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        listed = ", ".join(map(clean, names[:_MOST]))
        raise UsageError(
            f"{path} holds no run but {len(names)} launches: {listed}{more}; take one, as in "
            f"collbench report {path / names[0]}"
        )
