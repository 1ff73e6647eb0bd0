"""`tickover overview`, `tickover replicas` and `tickover top`: the whole group at a glance, once or refreshed."""
