"""Baseline and candidate to verdicts: rules, launches in pairs, baselines as files, every form of the result."""
