"""The sink `parquet`: a folder of Parquet files, with a log of its commits."""
