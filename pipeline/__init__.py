"""Jobs on Spark over the ledger and the topics: what happened, what will happen, and acting on it at scale."""
