"""The verbs of the command line: their requests (parsed flags) and functions."""
