"""Alembic's entry: runs on the connection that `popserver.database.migrate` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from popserver.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
