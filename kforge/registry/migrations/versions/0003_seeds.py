"""Seeds"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seed",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("operator", sa.String(), nullable=False),
        sa.Column("where", sa.JSON(), nullable=False),
        sa.Column("bucket", sa.JSON(), nullable=False),
        sa.Column("backend", sa.String(), nullable=False),
        sa.Column("template", sa.String(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("target_identity", sa.String(), nullable=False),
        sa.Column("measured_on", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("created", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("seed", schema=None) as batch_op:
        batch_op.create_index("seed_by_operator", ["operator", "target_identity"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("seed", schema=None) as batch_op:
        batch_op.drop_index("seed_by_operator")
    op.drop_table("seed")
