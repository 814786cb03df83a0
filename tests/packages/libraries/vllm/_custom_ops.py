"""vLLM's operators."""

import libraries_fake


def meta_size() -> int:
    libraries_fake.compiled()
    return 4096
