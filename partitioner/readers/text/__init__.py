"""Readers of text: FROSTT's ``.tns``."""
