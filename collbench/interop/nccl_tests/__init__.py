"""nccl-tests: finding and running its programs, and reading what they print or write. docs/nccl-tests.md."""
