"""Compiled row problems of CP-APR: PDNR and PQNR."""
