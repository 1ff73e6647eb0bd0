"""The rulebook: what a policy is, what it decides for a record, and the topic in which all versions live."""
