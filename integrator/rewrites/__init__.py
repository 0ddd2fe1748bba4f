"""Changes of a captured graph that are no kernels: each with a precondition, a proof on the graph, and a switch."""
