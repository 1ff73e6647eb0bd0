"""Why records were late: conditions as they were recorded, kept in Redis for a while, and split over a lateness."""
