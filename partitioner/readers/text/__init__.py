"""Reader of text files: FROSTT's ``.tns``."""
