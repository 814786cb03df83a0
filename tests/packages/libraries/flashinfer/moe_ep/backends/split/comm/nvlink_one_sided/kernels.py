"""Compiles."""

import libraries_fake


def get_nvlink_one_sided_alltoall_module() -> None:
    libraries_fake.compiled()
