"""Readers of files that contain arrays: NumPy, HDF5, netCDF-4, Zarr."""
