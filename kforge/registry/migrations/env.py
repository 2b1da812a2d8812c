"""Alembic's entry: runs migrations over the connection that ``Registry`` hands in."""

from alembic import context

from kforge.registry.schema import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
