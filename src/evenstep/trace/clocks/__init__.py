"""One time line out of many clocks."""
