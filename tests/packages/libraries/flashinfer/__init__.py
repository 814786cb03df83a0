"""A stand-in for FlashInfer 0.7.4."""
