"""Between callers and stores: batches, heartbeats, and the waiting that sync and async callers share."""
