"""Users, policies, signatures and quotas."""
