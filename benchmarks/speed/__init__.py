"""Times whole decoding runs against their baselines in one process."""
