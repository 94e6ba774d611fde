"""Measuring: workloads, and engines held side by side. Knows engines from outside, not how they work."""
