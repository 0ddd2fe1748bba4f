"""Candidates from language models, asked through LiteLLM under hard budgets."""
