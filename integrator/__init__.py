"""Put winners into a model, verify the whole, measure it, report it, and take them out again."""
