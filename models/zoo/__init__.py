"""Public models by short name: their real dimensions, as data. Weights are made up."""
