"""Short lists of names."""

from collbench.wording import counted, first_few, first_of


def test_what_is_left_out_is_counted() -> None:
    """Nothing is said where everything stands there."""
    assert first_few(["a"], 2) == "a"
    assert first_few(["a", "b"], 2) == "a, b"
    assert first_few(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert first_few([], 2) == ""


def test_the_first_stands_for_the_others() -> None:
    """So many follow."""
    assert first_of(["a"]) == "a"
    assert first_of(["a", "b", "c"]) == "a (and 2 more)"


def test_one_is_singular() -> None:
    assert [counted(n, "launch", "es") for n in (0, 1, 2)] == ["0 launches", "1 launch", "2 launches"]
    assert counted(1, "cell") == "1 cell"
