"""The CPU without compiled code: NumPy and SciPy, for runs that take less time than compiling."""
