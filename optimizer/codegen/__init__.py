"""Turn a region into a typed loop program, and a loop program into C++ or Triton source."""
