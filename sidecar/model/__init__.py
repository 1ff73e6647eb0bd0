"""Words that all parts share: a record, its headers, offsets, ports to Kafka, counts."""
