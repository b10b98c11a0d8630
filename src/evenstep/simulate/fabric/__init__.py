"""The fabric: machines, links, routes, and collectives laid on them."""
