"""Readers of arrays: NumPy, HDF5, netCDF and Zarr."""
