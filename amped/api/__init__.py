"""The Python functions. Under ``mpirun`` they are collective and use all ranks."""
