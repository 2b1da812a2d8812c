"""What ``bench/peers.py`` is made of: peers' environments, drivers as processes, rows, figures and goals."""
