"""What ``bench/accuracy.py`` measures: operators, whole model, divergence on a text, and bits."""
