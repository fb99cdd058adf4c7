"""`popmq mirror`: hand messages over from one server to another."""
