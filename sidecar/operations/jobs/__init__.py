"""Jobs that are planned first and outlive whoever began them: redrives of dead letters, changes of held messages."""
