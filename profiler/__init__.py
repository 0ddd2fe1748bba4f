"""Measure where a workload spends its time and how far each op is from what this machine can do."""
