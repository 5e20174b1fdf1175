"""What users hold: locks, semaphores, holds, and the leases that they yield."""
