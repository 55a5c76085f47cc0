"""What a run tells: text, a live display, and metrics as JSON lines."""
