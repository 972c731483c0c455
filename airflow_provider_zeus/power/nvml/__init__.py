"""NVIDIA GPUs by NVML."""
