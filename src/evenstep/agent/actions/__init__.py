"""What a rank may do about its job, each tried by `RandomTrial` and reversible to the last bit."""
