"""An emulated link that is perfectly fair: a small process grants bucket transfers."""
