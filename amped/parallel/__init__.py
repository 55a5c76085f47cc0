"""The processes of a run: communication, monitoring and stopping."""
