"""Own kernels: device code, its compilation, memory shared between ranks, the runner, and a harness of virtual ranks."""
