"""The database: schema, connections, the two dialects, parameters and results, migrations."""
