"""Between callers and stores: batching, heartbeats, and the waiting code that sync and async callers share."""
