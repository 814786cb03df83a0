"""What a page must not tell is taken out, and what it should tell stays."""

import pytest

from collbench.results.private import public, public_command, public_facts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /srv/joe/lib/libnccl.so.2: no such file", "cannot open PATH: no such file"),
        ("LD_PRELOAD=/opt/x/libnccl.so.2", "LD_PRELOAD=PATH"),
        ("~/runs/a and ../b/c and ./d", "PATH and PATH and PATH"),
        ("~joe is full", "PATH is full"),
        ("('/srv/a.py', 3)", "('PATH', 3)"),
        ("/dev/shm is full", "/dev/shm is full"),
        ("/sys/bus/pci and /proc/cpuinfo", "/sys/bus/pci and /proc/cpuinfo"),
        ("53.8 GB/s, in/out, 128/120 of 3 / 4", "53.8 GB/s, in/out, 128/120 of 3 / 4"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("GPU-8c3f1a2b-1111-2222-3333-444455556666 is busy", "UUID is busy"),
        ("red\x1b[31m\x00 text", "red[31m text"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert public(text) == expected


def test_the_command_can_be_repeated_elsewhere() -> None:
    command = ("/srv/joe/.venv/bin/collbench", "sweep", "-b", "1K", "--out", "/srv/joe/run 1", "--out=/tmp/x")

    assert public_command(command) == "collbench sweep -b 1K --out 'PATH 1' --out=PATH"
    assert public_command(()) == ""


def test_facts_about_people_and_single_machines_are_left_out() -> None:
    facts = {
        "hostname": "joe-box", "user": "joe", "serial": "123", "gpu_uuid": "x", "api_token": "y", "arch": "sm_120",
        "host_arch": "x86_64", "p2p": "ok", "empty": "", "lib": "/srv/joe/x.so", "hosts": "2",
    }  # fmt: skip

    assert public_facts(facts) == {"arch": "sm_120", "host_arch": "x86_64", "lib": "PATH", "p2p": "ok", "hosts": "2"}
