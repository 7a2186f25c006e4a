"""Results in, text out; pure."""
