"""The router of a disaggregated deployment: prefill leg, decode leg, nothing hidden."""
