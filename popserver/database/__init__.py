"""The database: schema, opening, the two dialects, rows in and out, migrations."""
