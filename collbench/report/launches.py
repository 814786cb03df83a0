"""A folder of runs in the place of one, as `collbench gate --paired` writes it: said with the names of the runs."""

from pathlib import Path

from collbench.errors import UsageError
from collbench.results.reading import RUN
from collbench.results.summary import clean
from collbench.wording import first_few

__all__ = ["refuse_folder_of_runs"]

_MOST = 4


def refuse_folder_of_runs(path: Path, word: str = "report") -> None:
    """Return where the folder holds a run, or no runs below it either.

    Raises:
        UsageError: runs lie below it; the first few are named, and one in a command `word`.
    """
    if not path.is_dir() or (path / RUN).exists():
        return
    try:
        names = sorted(one.parent.name for one in path.glob(f"*/{RUN}"))
    except OSError:  # whoever reads it next says why
        return
    if names:
        many = f"{len(names)} launch{'es' if len(names) > 1 else ''}"
        told = f"{path} holds no run but {many}: {first_few([clean(name) for name in names], _MOST)}"
        raise UsageError(f"{told}; take one, as in collbench {word} {path / names[0]}")
