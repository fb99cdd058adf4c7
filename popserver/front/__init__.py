"""What stands before gRPC: the public port, and the certificate the server shows."""
