"""The door of gRPC's own library (docs/design/0025)."""
