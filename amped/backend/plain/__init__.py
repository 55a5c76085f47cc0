"""The host's cores without compiled code: NumPy and SciPy, for runs that take less time than a compiler."""
