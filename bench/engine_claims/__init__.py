"""The parts of ``bench/claims.py``: what the field says of serving engines, each tried on this engine."""
