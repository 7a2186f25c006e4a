"""Plants faults of the KV transfer in a running vLLM, to show that the rig finds them."""
