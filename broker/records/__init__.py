"""Record batches as bytes: reading, checking, compressing them."""
