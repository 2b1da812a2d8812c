"""References of exported definitions in plain PyTorch: a module's text stands in the definition, ATTRIBUTES filled in.

Those of packed weights read kforge's layout with kforge itself.
"""
