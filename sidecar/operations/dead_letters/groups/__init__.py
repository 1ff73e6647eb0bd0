"""Groups of dead letters that failed alike: how many, when, and where people stand with them."""
