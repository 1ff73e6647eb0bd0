"""Flow control: how fast what is due goes to its target."""
