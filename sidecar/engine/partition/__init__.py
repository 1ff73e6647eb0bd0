"""State of one source partition: its offsets, wheel, change blocks, order by key, quota."""
