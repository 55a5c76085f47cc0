"""Small matrices beside a CPU's factor matrices: in NumPy."""

from __future__ import annotations

from ...small import providers as providers
