"""Lessons"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lesson",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("operator", sa.String(), nullable=False),
        sa.Column("backend", sa.String(), nullable=False),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("bottleneck", sa.String(), nullable=False),
        sa.Column("move", sa.String(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "lesson_event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("lesson", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("run", sa.String(), nullable=True),
        sa.Column("idea", sa.String(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["lesson"],
            ["lesson.id"],
        ),
        sa.ForeignKeyConstraint(
            ["run"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("lesson_event", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_lesson_event_lesson"), ["lesson"], unique=False)
        batch_op.create_index("lesson_event_by_idea", ["run", "idea"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("lesson_event", schema=None) as batch_op:
        batch_op.drop_index("lesson_event_by_idea")
        batch_op.drop_index(batch_op.f("ix_lesson_event_lesson"))

    op.drop_table("lesson_event")
    op.drop_table("lesson")
