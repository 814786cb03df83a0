"""A folder of FlashInfer's."""
