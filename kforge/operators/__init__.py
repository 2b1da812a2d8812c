"""Operator contracts and their references."""
