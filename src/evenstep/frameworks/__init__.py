"""Training frameworks: Lightning, transformers, accelerate, DeepSpeed, Ray Train."""
