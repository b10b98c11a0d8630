"""What lives in a training process: recorder, steps, waits, pacing, locality, sharing."""
