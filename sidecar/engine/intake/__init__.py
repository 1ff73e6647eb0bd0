"""From a consumed record to a held one: decisions, control records, order by key, quotas."""
