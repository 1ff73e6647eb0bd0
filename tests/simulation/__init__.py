"""The engine on a simulated clock, with faults."""
