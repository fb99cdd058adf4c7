"""A simulation: the broker's own code on a clock that jumps, with random clients and faults, all from one seed."""
