"""Optimizers by name: torch's own, or a library's. Importable without torch."""
