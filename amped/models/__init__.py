"""What a decomposition gives: models that are saved, loaded and arranged."""
