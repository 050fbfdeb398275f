"""Build a coreset: sensitivities, calibration, sampling."""
