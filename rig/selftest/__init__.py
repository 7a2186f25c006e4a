"""Planting every fault on a running engine, and showing which of them the rig catches."""
