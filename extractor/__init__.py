"""Capture what a model executes and cut its hot regions out as standalone tasks, ranked by attainable gain."""
