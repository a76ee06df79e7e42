"""Layers, heads and whole models that several families are made of, with their settings."""
