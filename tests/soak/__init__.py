"""Random faults for as long as wanted, and an oracle's table at the end."""
