"""Turn a model spec into a workload: a live model and its example calls."""
