"""What evenstep costs and whether it is right, measured on real runs: see `README.md` beside."""
