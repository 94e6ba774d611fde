"""The sections of scripts/gpu_check.py. Read `main` first, then `record`, then the sections in their order."""
