"""Users, policies, signatures and quotas: who may do what."""
