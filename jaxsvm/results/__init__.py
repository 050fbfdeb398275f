"""Results of solvers: fits, their status and certificates, and the judge of certificates."""
