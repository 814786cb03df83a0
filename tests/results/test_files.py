"""What is replaced, and what is only written to."""

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import InvalidError, UsageError
from collbench.results.files import append_text, is_special, readable_errors, refuse_part_of_run, replace_whole


def _reader(path: Path) -> tuple[threading.Thread, list[bytes]]:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.parametrize("through_link", [False, True])
def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path, *, through_link: bool) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    thread, found = _reader(pipe)

    replace_whole(link if through_link else pipe, lambda file: file.write(b"page"))

    thread.join(10)
    assert found == [b"page"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "pipe"]


@pytest.mark.parametrize("there", [False, True])
def test_a_symlink_stays_and_its_target_is_replaced(tmp_path: Path, *, there: bool) -> None:
    """Also one that leads to a file that is not there yet."""
    target, link = tmp_path / "elsewhere" / "page", tmp_path / "link"
    target.parent.mkdir()
    if there:
        target.write_bytes(b"old")
    link.symlink_to(target)

    replace_whole(link, lambda file: file.write(b"new"))

    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_symlinks_in_a_circle_are_an_error_and_stay(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(OSError, match="symbolic links"):
        replace_whole(link, lambda file: file.write(b"new"))
    assert link.is_symlink()


def test_what_is_special(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not is_special(tmp_path / "file")
    assert not is_special(tmp_path / "absent")
    assert is_special(tmp_path)


def test_a_file_for_others_has_the_mode_of_the_old_one_or_the_umasks(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for name in ("new", "ours"):
            replace_whole(tmp_path / name, lambda file: file.write(b"x"), private=name == "ours")
        replace_whole(tmp_path / "ours", lambda file: file.write(b"y"), private=False)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "ours")] == [0o640, 0o600]


def test_text_is_appended_to_files_and_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    thread, found = _reader(tmp_path / "pipe")
    append_text(tmp_path / "pipe", "é" * 99_999)  # more than a pipe holds
    for text in ("a", "é"):
        append_text(tmp_path / "file", text)
    thread.join(10)
    assert (found, (tmp_path / "file").read_text(encoding="utf-8")) == (["é".encode() * 99_999], "aé")


_FULL = "the disk is full, or the file is at its size limit: free some space"


@pytest.mark.parametrize(
    ("number", "known", "told"),
    [
        (errno.EACCES, {}, "cannot be written (Permission denied): choose another place"),
        (errno.EROFS, {"option": "--to"}, "cannot be written (Read-only file system): choose another place with --to"),
        (errno.ENOSPC, {"option": "--to"}, _FULL),
        (errno.ENOSPC, {"option": "--out", "resume": True}, f"{_FULL}, then go on with --resume"),
    ],
)
def test_the_advice_names_an_option_that_the_caller_has(number: int, known: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as caught, readable_errors(Path("x"), **known):
        raise OSError(number, os.strerror(number))

    assert str(caught.value) == f"x: {told}"


@pytest.mark.parametrize("through_link", [False, True])
@pytest.mark.parametrize("name", ["run.json", "samples.jsonl", "samples.parquet", "evidence.jsonl"])
def test_what_a_run_holds_is_no_place_for_a_report(tmp_path: Path, name: str, *, through_link: bool) -> None:
    (tmp_path / "run.json").write_text("{}")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / name)
    with pytest.raises(UsageError, match="is a file of a run"):
        refuse_part_of_run(link if through_link else tmp_path / name)


def test_files_beside_a_run_are_a_place_for_reports(tmp_path: Path) -> None:
    refuse_part_of_run(tmp_path / "run.json")  # no run is there
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "other").mkdir()
    for name in ("report.html", "other/samples.jsonl", "run.md"):
        refuse_part_of_run(tmp_path / name)
