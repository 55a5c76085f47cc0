"""Reports of runs and models: text, live displays, metrics, pictures and HTML."""
