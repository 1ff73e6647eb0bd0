"""Several processes of one group under one supervisor: started, watched, replaced and stopped."""
