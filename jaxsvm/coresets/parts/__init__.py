"""Build coresets of data in parts: streams, files, meshes, clusters."""
