"""Own kernels: device code, compilation, memory shared between ranks, the runner, a harness of virtual ranks."""
