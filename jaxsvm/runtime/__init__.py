"""Everything about JAX and the process: compiled programs, transfers, meshes, arrays, argument checks."""
