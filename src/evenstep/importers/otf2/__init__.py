"""OTF2 archives: what Score-P, EZTrace and others record of programs with MPI."""
