"""Dead letters: reading them, telling them apart, and sending them again. Beside the engine, never in its thread."""
