"""A run: what to tune, the search, the judge, promotion in the engine, and the report."""
