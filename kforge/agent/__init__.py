"""The agent: a language model that analyses, writes and repairs kernel templates, inside a budget, on the record."""
