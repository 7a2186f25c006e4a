"""The simulated engine: vLLM's HTTP face without a model, with faults to plant. Started as a process."""
