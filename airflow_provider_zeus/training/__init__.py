"""Inside a training process: the run handle, the just-in-time profiler, plan and result."""
