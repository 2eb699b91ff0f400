"""A durable work queue that takes failure seriously."""
