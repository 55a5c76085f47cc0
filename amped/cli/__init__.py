"""The verbs of the command line: what each is asked for, and what it does."""
