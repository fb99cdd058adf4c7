"""The SQL functions read the same in each session of a user, whatever `standard_conforming_strings` it has.

They are replaced, so they keep the rights that users were granted.
"""

from __future__ import annotations

from alembic import op

from popserver.database import migrate

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        made = migrate.functions_text(op.get_bind(), migrate.script_location() / "functions.sql")
        replaced = made.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
        op.get_bind().exec_driver_sql(replaced, execution_options={"no_parameters": True})


def downgrade() -> None:
    """The older functions differ in no argument."""
