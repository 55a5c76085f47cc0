"""The Python functions. The same calls under ``mpirun`` use all ranks."""
