"""The processes of a run: how they talk, exchange rows, watch each other and stop together."""
