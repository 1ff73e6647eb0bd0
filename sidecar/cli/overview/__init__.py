"""`tickover overview`, `replicas`, `top`: the whole group at a glance, once or refreshed; `events`: what changes."""
