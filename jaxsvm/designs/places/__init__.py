"""Where the rows of a design lie: in memory or on a mesh, on a Dask cluster, in files; of joins see `relational`."""
