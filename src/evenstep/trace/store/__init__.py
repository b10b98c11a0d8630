"""A trace as Parquet files, and SQL over them."""
