"""Real public model configurations as data, and the names they go by."""
