"""The null device: the host under the rules of a GPU, to check what operators and methods do without one."""
