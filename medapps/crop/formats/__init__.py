"""The files of a crop: safetensors, npz, Parquet."""
