"""What JAX and the process need: compiled programs, transfers, meshes, arrays, argument checks."""
