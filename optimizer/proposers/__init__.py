"""Everything that makes candidates: template search, library calls, language models."""
