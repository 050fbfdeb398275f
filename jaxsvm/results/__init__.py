"""What a solver hands back: fits, their status and certificates, and the judge of certificates."""
