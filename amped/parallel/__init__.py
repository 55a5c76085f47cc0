"""The processes of a run: how they talk, watch each other and stop together."""
