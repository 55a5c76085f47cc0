"""Readers of tables: CSV, Parquet, JSON, Arrow and data frames, through DuckDB."""
